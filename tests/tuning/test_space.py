"""Legal configurations: what the rules allow, and the reasons for what they refuse."""

import pytest

from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.prediction.changes import changes_of
from stepsight.tuning.dimensions import parsed_over
from stepsight.tuning.evaluate import with_settings
from stepsight.tuning.space import space
from stepsight.workload.files import parse_workload

from .model import DLRM, MODEL


def legal(over=(), gpus=(8,), **more):
    return space(MODEL, gpus=list(gpus), per_node=8, over=parsed_over(over), **more)


def test_every_candidate_is_a_workload_on_all_gpus():
    found = legal()
    assert len(found.candidates) > 50
    for settings in found.candidates:
        assert parse_workload(with_settings(found.document, settings, "t"), "t").ranks == 8


def test_no_candidate_comes_twice():
    listed = [tuple(sorted(map(str, c.items()))) for c in legal().candidates]
    assert len(listed) == len(set(listed))


def test_rules():
    for c in legal().candidates:
        tensor, pipeline = c.get("parallel.tensor", 1), c.get("parallel.pipeline", 1)
        assert 8 % tensor == 0 and 8 % (pipeline * c.get("parallel.virtual_stages", 1)) == 0
        assert 32 % (c["parallel.data"] * c["parallel.micro_batch"]) == 0
        assert not (c.get("parallel.zero", 0) >= 2 and pipeline > 1)
        assert c.get("parallel.sequence_parallel", False) == (tensor > 1)


def test_refusals_are_counted_by_reason():
    assert legal().refused["ZeRO 2 and 3 do not go with a pipeline"] > 0


def test_selective_recomputation_is_tried_where_it_saves_memory():
    """Megatron's does not beside flash attention, torchtitan's does."""
    assert "selective" not in legal().dimensions["training.recompute"]
    refused = legal(["recompute=none,selective"]).refused
    assert refused["selective recomputation of Megatron saves nothing with flash attention"] > 0
    other = {**MODEL, "training": {"precision": "bf16", "framework": "torchtitan"}}
    assert "selective" in space(other, gpus=[8], per_node=8).dimensions["training.recompute"]


def test_fsdp_has_no_zero_1_without_a_pipeline():
    """In one, gradients are reduced once, after the last micro-batch."""
    other = {**MODEL, "training": {"framework": "torchtitan"}}
    found = space(other, gpus=[8], per_node=8)
    assert any("shards gradients" in reason for reason in found.refused)
    first = [c for c in found.candidates if c.get("parallel.zero") == 1]
    assert first and all(c["parallel.pipeline"] > 1 for c in first)
    assert any(c["parallel.zero"] == 1 and c["parallel.pipeline"] == 1 for c in legal().candidates)


def test_modules_are_recomputed_where_the_framework_can():
    """The lists that `stepsight advise` tries."""
    lists = ['["mlp_act"]', '["mlp_act","layernorm"]', '["mlp"]']
    assert list(legal().dimensions["training.recompute"]) == ["none", *lists, "full"]
    advised = [one for c in changes_of(parse_workload(MODEL, "t"), load_gpu("H100")) for one in c.assignments]
    assert {f"training.recompute={one}" for one in lists} <= set(advised)
    both = legal(["training.framework=megatron,torchtitan"])
    by_torchtitan = {
        c["training.recompute"] for c in both.candidates if c["training.framework"] == "torchtitan"
    }
    assert by_torchtitan == {"none", "selective", "full"}
    assert both.refused["only Megatron recomputes modules by name"] > 0


def test_a_pipeline_is_interleaved_as_the_recipe_does_it():
    deep = {**MODEL, "layers": 40, "parallel": {"pipeline": 2, "data": 4, "micro_batch": 1}}
    usual = parse_workload(deep, "t").config.layout.virtual_stages
    assert usual not in (1, 2, 4)
    found = space(deep, gpus=[8], per_node=8, over=parsed_over(["pp,vp,micro_batch=1"]))
    stages = {c["parallel.virtual_stages"] for c in found.candidates if c["parallel.pipeline"] == 2}
    assert stages == {1, 2, 4, usual}


def test_frameworks_are_compared_over_all_layouts():
    layouts = set(legal().dimensions)
    assert set(legal(["training.framework=megatron,torchtitan"]).dimensions) == {
        *layouts,
        "training.framework",
    }
    assert set(legal(["training.framework=megatron", "tp"]).dimensions) == {
        "training.framework", "parallel.tensor"
    }  # fmt: skip


def test_values_may_be_given():
    found = legal(["tp=2,4", "zero=1", "micro_batch"])
    assert {c["parallel.tensor"] for c in found.candidates} == {2, 4}
    assert found.dimensions["parallel.zero"] == (1,)


def test_names_and_values_mix_in_one_option():
    assert list(parsed_over(["tp,pp,zero=0,1"])) == ["parallel.tensor", "parallel.pipeline", "parallel.zero"]


def test_several_fields_with_values_in_one_option():
    found = parsed_over(["tp,zero=0,1,mbs=1,pp", "dense.bottom=[64,32],[32]"])
    assert found == {
        "parallel.tensor": None, "parallel.zero": [0, 1], "parallel.micro_batch": [1],
        "parallel.pipeline": None, "dense.bottom": ["[64,32]", "[32]"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [("=1", "no field"), ("tp=", "no value"), (",", "no field"), ("tp,tp=1", "twice"), ("a=[1", "bracket")],
)
def test_what_cannot_be_read_is_named(text, said):
    with pytest.raises(InputError, match=said):
        parsed_over([text])


def test_data_parallelism_that_is_asked_for_is_kept():
    found = legal(["dp=2,8", "tp"])
    assert {(c["parallel.data"], c.get("parallel.tensor")) for c in found.candidates} == {(8, 1), (2, 4)}
    assert found.refused["data × tensor × pipeline × context is not the number of GPUs"] > 0


def test_a_schedule_is_tried_where_there_is_a_pipeline():
    found = legal(["schedule", "pp=1,2", "vp=1,2", "micro_batch=1"])
    assert [c.get("parallel.schedule") for c in found.candidates if c["parallel.pipeline"] == 1] == [None]
    flat = [c for c in found.candidates if c["parallel.pipeline"] == 2 and c["parallel.virtual_stages"] == 1]
    assert {c["parallel.schedule"] for c in flat} == {"1f1b", "afab", "zero_bubble"}


def test_how_sequences_are_split_is_tried_where_they_are():
    found = legal(["cp=1,2", "context_kind", "micro_batch=1"])
    assert [c.get("parallel.context_kind") for c in found.candidates if c["parallel.context"] == 1] == [None]
    split = {c["parallel.context_kind"] for c in found.candidates if c["parallel.context"] == 2}
    assert split == {"ring", "all_gather", "all_to_all"}


def test_a_way_to_split_sequences_that_is_stated_stays():
    parallel = {**MODEL.get("parallel", {}), "context": 2, "context_kind": "all_to_all"}
    found = space({**MODEL, "parallel": parallel}, gpus=[8], per_node=8, over=parsed_over(["zero=0,1"]))
    assert {c["parallel.context_kind"] for c in found.candidates} == {"all_to_all"}


def test_several_gpu_counts():
    ranks = {c["parallel.data"] for c in legal(["tp=1"], gpus=(2, 4)).candidates}
    assert ranks == {2, 4}


def test_what_is_not_varied_stays_as_it_is():
    model = {**MODEL, "parallel": {"data": 4, "zero": 1, "tensor": 2, "sequence_parallel": True}}
    found = space(model, gpus=[8], per_node=8, over=parsed_over(["micro_batch=1,2"]))
    assert found.document["parallel"]["tensor"] == 2
    assert all(c["parallel.data"] == 4 and c["parallel.sequence_parallel"] for c in found.candidates)


def test_a_dimension_that_the_model_lacks():
    with pytest.raises(InputError, match="no experts"):
        legal(["ep"])
    with pytest.raises(InputError, match="lacks"):
        legal(["sharding"])
    with pytest.raises(InputError, match="lacks"):
        space(DLRM, gpus=[4], per_node=8, over=parsed_over(["tp"]))


def test_a_field_without_values_of_its_own_needs_some():
    with pytest.raises(InputError, match="give some"):
        legal(["hidden"])


def test_a_dlrm_is_spread_by_its_plan_batch_and_precision():
    found = space(DLRM, gpus=[2, 4], per_node=8)
    assert {c["parallel.ranks"] for c in found.candidates} == {2, 4}
    assert {c["batch"] for c in found.candidates} == {2048, 4096, 8192}
    assert {c["parallel.sharding"] for c in found.candidates} == {"search"}


def test_a_batch_a_rank_counts_on_all_gpus_where_ranks_are_open():
    model = {k: v for k, v in MODEL.items() if k not in ("global_batch", "parallel")} | {"batch_per_rank": 2}
    found = space(model, gpus=[8], per_node=8)
    assert found.document["global_batch"] == 16


def test_a_model_without_a_batch_sees_one_sequence_per_replica():
    model = {k: v for k, v in MODEL.items() if k not in ("global_batch", "parallel")}
    assert space(model, gpus=[8], per_node=8).document["global_batch"] == 8
