"""Workload files: what is read, what is refused with its fix, and where each setting comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.records import read_toml
from stepsight.tables.plan import Plan
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.files import Workload, load_workload, parse_workload, resolve
from stepsight.workload.llm.workload import LanguageWorkload

EXAMPLES = Path(__file__).parents[1] / "data" / "workloads"
"""The examples with a number of ranks of their own."""
SHIPPED = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda p: p.stem)
def test_every_example_makes_a_job(path: Path) -> None:
    workload = resolve(load_workload(path), 8)
    job = workload.job()
    staged = isinstance(workload, LanguageWorkload) and workload.eager is None
    shown = workload.config.layout.pipeline if staged else workload.ranks  # type: ignore[union-attr]
    assert job.ranks == shown
    assert all(len(program) > 20 for program in job.programs)
    assert workload.name == path.stem


def test_a_file_becomes_its_kind_of_workload() -> None:
    assert isinstance(load_workload(EXAMPLES / "dlrm.toml"), DlrmWorkload)
    bert = load_workload(EXAMPLES / "bert.toml")
    assert isinstance(bert, LanguageWorkload) and bert.eager is not None


def test_a_plan_tells_the_ranks_where_the_file_does_not(tmp_path: Path) -> None:
    described = load_workload(SHIPPED / "dlrm.toml", ["parallel.ranks=4"])
    assert isinstance(described, DlrmWorkload)
    plan = tmp_path / "plan.json"
    described.config.plan.write(plan)
    document = read_toml(SHIPPED / "dlrm.toml")
    planned = parse_workload({**document, "parallel": {"sharding": {"file": str(plan)}}}, "test")
    assert planned.ranks == 4


def test_a_known_model_is_read_by_its_name() -> None:
    assert isinstance(load_workload("llama3-8b"), LanguageWorkload)
    assert load_workload("llama3_8b").config.model == load_workload("llama3-8b").config.model
    with pytest.raises(InputError, match=r"did you mean llama3-8b, llama3\.1-8b or"):
        load_workload("lama3-8b")
    with pytest.raises(InputError, match="check the path"):
        load_workload("llama3-8b.toml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rank=4", r"rank: unknown field; did you mean parallel.ranks"),
        ("precison=bf16", r"precison: unknown field; did you mean training.precision"),
        ("parallel.rank=4", r"\[parallel\]: rank: unknown field; did you mean parallel.ranks"),
        ("zzz=1", r"zzz: unknown field; known: batch, dense\.bottom, .*parallel\.ranks, .*training\.stack"),
        ("parallel.zzz=1", r"\[parallel\]: zzz: unknown field; known: bucket_mb, [^.]*$"),
        ("dense.featuers=1", r"\[dense\]: featuers: unknown field; did you mean dense.features"),
        ("tables.0.rows=-5", r"tables\[0\]: rows: is -5; must be at least 1"),
        (
            "tables.0.dim=128 B",
            r"dim: must be a number, not '128 B'; write plain digits without a unit",
        ),
        ("batch=4097", "batch: 4097 is not a multiple of ranks = 4; use a multiple of 4"),
        ("dense.interaction=dott", "unknown interaction 'dott'; did you mean 'dot'"),
        ("training.precision=fp8", "unknown precision 'fp8'"),
        ("parallel.sharding=greedy", "unknown sharder 'greedy'"),
        ("parallel.sharding=[0, 1]", "a rank for each of the 8 tables"),
        ("parallel.sharding=[0, 1, 2, 3, 0, 1, 2, 9]", "rank 9 of 4"),
        ("tables.indices=zipfian", "not an index distribution: 'zipfian'"),
        ("training.sparse_optimizer=adamax", "sparse_optimizer: unknown 'adamax'"),
        ("training.sparse_update=atomic", "unknown sparse_update 'atomic'"),
        ("dense.bottom=1024", "must be a list of sizes"),
        ("kind=dlmr", "unknown kind 'dlmr'; did you mean 'dlrm'"),
        ("tables.5.rows=3", "there are only 1 entries"),
        ("batch.size=3", "goes below a plain value"),
        ("parallel.input_dist=1", "must be true or false"),
    ],
)
def test_a_mistake_in_a_dlrm_is_named_with_its_fix(change: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        load_workload(EXAMPLES / "dlrm.toml", [change])
    assert "dlrm.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("heads=7", "7 heads do not divide hidden = 768"),
        ("family=gpt5", "unknown family 'gpt5'; did you mean 'gpt"),
        ("kv_heads=5", "5 do not divide heads = 12"),
        ("training.dropout=2", "dropout: is 2; must be between 0 and 0.99"),
        ("parallel.pipeline=15", "15 pieces for 12 layers"),
        ("head=none", "a model without head has no loss"),
    ],
)
def test_a_mistake_in_a_transformer_is_named_with_its_fix(change: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_workload(EXAMPLES / "gpt2.toml", [change])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("gpus=16", "belongs to the platform; -p 2x8xH100-SXM is two nodes of eight"),
        ("parallel.nodes=2", "belongs to the platform"),
        ("flash=true", "did you mean training.attention=flash2"),
        ("zzz=1", r"known: .*moe, .*parallel\.ranks, .*parallel\.zero, .*training\.attention"),
        ("recipe=torchtita", "did you mean 'torchtitan', 'torchtitan-2025' or 'pytorch'"),
    ],
)
def test_a_mistake_in_a_models_settings_is_named_with_its_fix(change: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_workload("llama3-8b", [change])


def test_sp_is_sequence_parallelism() -> None:
    found = load_workload("llama3-8b", ["tp=2", "sp=false"])
    assert isinstance(found, LanguageWorkload) and not found.config.layout.sequence_parallel


def test_a_field_of_the_other_kind_of_training_is_explained() -> None:
    with pytest.raises(InputError, match=r"fused_optimizer: .*; remove fused_optimizer"):
        load_workload("llama3-8b", ["training.fused_optimizer=false", "training.framework=megatron"])
    assert resolve(load_workload(SHIPPED / "llama.toml", ["parallel.zero=1"]), 8).ranks == 8
    sharded = load_workload(
        SHIPPED / "gpt2.toml", ["training.compile=true", "training.framework=hf", "parallel.zero=1"]
    )
    assert isinstance(resolve(sharded, 8), LanguageWorkload)


@pytest.mark.parametrize(
    ("field", "value", "gpus", "said"),
    [
        ("shard_group", 24, 64, "shard_group: 24 does not divide data × context = 64"),
        ("shard_group", 24, 8, "shard_group: 24 does not divide data × context = 8"),
        ("expert", 3, 8, "expert: 3 ranks do not divide 8 experts"),
        ("expert", 8, 25, "expert: 8 does not divide the 25 ranks of a stage"),
    ],
)
def test_groups_that_do_not_divide_the_ranks_are_blamed_not_the_batch(
    field: str, value: int, gpus: int, said: str
) -> None:
    """A batch of 50 divides by none of what is left when ranks that belong to no group stand idle."""
    batch = {24: 64, 3: 64, 8: 50}[value]
    changes = [f"parallel.{field}={value}", f"global_batch={batch}"]
    changes += ["parallel.zero=3"] if field == "shard_group" else []
    with pytest.raises(InputError, match=said):
        resolve(load_workload("mixtral-8x7b", changes), gpus)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.toml: cannot be read"):
        load_workload(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("batch = = 3")
    with pytest.raises(InputError, match=r"broken.toml: not valid TOML"):
        load_workload(broken)
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    with pytest.raises(InputError, match="kind: is missing"):
        load_workload(empty)


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(InputError, match=r"is not key.path=value"):
        load_workload(EXAMPLES / "dlrm.toml", ["parallel.ranks"])


def test_overrides_may_be_a_mapping_and_reach_every_table() -> None:
    workload = load_workload(EXAMPLES / "dlrm.toml", {"tables.dim": "64", "parallel.ranks": "2"})
    assert isinstance(workload, DlrmWorkload)
    assert {table.dim for table in workload.tables} == {64}
    assert workload.ranks == 2


def test_ranks_of_a_transformer_are_data_parallel_ranks() -> None:
    assert load_workload(EXAMPLES / "bert.toml", ["parallel.ranks=2"]).ranks == 2


def test_a_plan_file_beside_the_workload_is_used(tmp_path: Path) -> None:
    base = load_workload(EXAMPLES / "dlrm.toml")
    assert isinstance(base, DlrmWorkload)
    Plan.table_wise(base.tables, [0] * 8, 4).write(tmp_path / "plan.json")
    path = tmp_path / "dlrm.toml"
    path.write_text(
        (EXAMPLES / "dlrm.toml").read_text().replace('"size_lookup_greedy"', '{ file = "plan.json" }')
    )
    workload = load_workload(path)
    assert isinstance(workload, DlrmWorkload)
    assert {shard.rank for shard in workload.plan.shards} == {0}
    with pytest.raises(InputError, match="the plan is for 4 ranks, the job has 2"):
        load_workload(path, ["parallel.ranks=2"])


def test_a_file_without_ranks_takes_all_gpus_of_the_platform() -> None:
    open_ranks = load_workload(SHIPPED / "dlrm.toml")
    assert resolve(open_ranks, 8).ranks == 8
    assert resolve(load_workload(EXAMPLES / "dlrm.toml"), 8).ranks == 4


def test_what_is_left_of_tensor_parallel_groups_is_data_parallel() -> None:
    tensor = load_workload(SHIPPED / "gpt2.toml", ["parallel.tensor=4"])
    assert resolve(tensor, 8).config.layout.data == 2  # type: ignore[union-attr]
    assert resolve(tensor, 7).ranks == 4


def test_experts_are_spread_over_ranks_that_the_file_leaves_open() -> None:
    sizes = {"model": "mixtral-8x7b", "sequence": 1024, "batch_per_rank": 1}
    moe = parse_workload({"kind": "transformer", **sizes, "parallel": {"expert": 8}}, "moe")
    assert resolve(moe, 8).ranks == 8
    assert resolve(moe, 20).ranks == 16


def test_what_needs_replicas_is_judged_by_the_ranks_of_the_platform() -> None:
    """Sharding groups and gradient buckets in a file that leaves the ranks open."""

    def llama(**parallel: object) -> Workload:
        sizes = {"model": "llama3-8b", "sequence": 1024, "batch_per_rank": 1}
        return parse_workload({"kind": "transformer", **sizes, "parallel": parallel}, "llama")

    assert resolve(llama(zero=3, shard_group=4), 8).config.layout.data == 8
    assert resolve(llama(zero=1, bucket_mb=50), 8).config.layout.bucket_mb == 50
    with pytest.raises(InputError, match="bucket_mb: has no effect"):
        resolve(llama(zero=1, bucket_mb=50), 1)
    with pytest.raises(InputError, match="bucket_mb: has no effect on FSDP"):
        resolve(llama(bucket_mb=50), 8)


@pytest.mark.parametrize("parallel", [5, "x", [], None])
@pytest.mark.parametrize("kind", ["dlrm", "transformer"])
def test_a_section_that_is_no_table_is_refused(kind: str, parallel: object) -> None:
    with pytest.raises(InputError):
        parse_workload({"kind": kind, "family": "llama", "parallel": parallel}, "w")


def test_tables_of_another_file_need_a_dlrm(tmp_path: Path) -> None:
    file = tmp_path / "tables.csv"
    file.write_text("rows,dim,pooling\n1000,32,4\n2000,32,4\n")
    workload = load_workload(EXAMPLES / "dlrm.toml", ["dense.bottom=[64,32]"], tables=file)
    assert isinstance(workload, DlrmWorkload) and [t.rows for t in workload.tables] == [1000, 2000]
    for other in ("llama3-8b", EXAMPLES / "gpt2.toml"):
        with pytest.raises(InputError, match="is not a DLRM"):
            load_workload(other, tables=file)


@pytest.mark.parametrize("tables", [{}, {"file": ""}])
def test_tables_without_their_file_are_refused(tables: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r".tables.: file: is missing"):
        parse_workload({**read_toml(EXAMPLES / "dlrm.toml"), "tables": tables}, "test")


def test_a_configuration_has_the_sequence_of_the_model_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        '{"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064,'
        '"num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,'
        '"max_position_embeddings": 131072, "tie_word_embeddings": false}'
    )
    by_file, by_name = load_workload(file), load_workload("qwen2.5-7b")
    assert by_file.config.sequence == by_name.config.sequence


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ("batch=8", "did you mean global_batch"),
        ("lr=1", "does not change the time of a step; leave it out"),
        ("seq=32k", "write 32768 or 32000 without a unit"),
        ("gradient_checkpointing=true", "did you mean training.recompute=full"),
    ],
)
def test_words_of_other_tools_lead_to_the_field(change: str, fix: str) -> None:
    with pytest.raises(InputError, match=fix):
        load_workload("llama3-8b", [change])


def test_a_batch_in_other_units_is_answered_at_once() -> None:
    assert resolve(load_workload("llama3-8b", ["global_batch=1e12"]), 8, load_gpu("H100-SXM")).ranks == 8
