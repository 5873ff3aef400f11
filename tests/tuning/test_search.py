"""The search prices as few as needed and never loses the best."""

import re

import pytest

import stepsight
from stepsight.capturing.step import CapturedStep, save_step
from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.memory import fit_probability
from stepsight.program.job import Job, Kernel, Op, RankProgram
from stepsight.report.search import noise_mark, remarks
from stepsight.sharding.choice import choose
from stepsight.tuning.answer import best_rows, why
from stepsight.tuning.api import _answer, sweep, tune
from stepsight.tuning.evaluate import evaluate
from stepsight.tuning.search import SURE, Bound, Search, ranked, score
from stepsight.tuning.space import Space, space
from stepsight.tuning.trial import Row, Trial
from stepsight.workload.files import parse_workload

from .model import DLRM, MODEL, PLATFORM


@pytest.fixture(scope="module")
def answer():
    return tune(MODEL, PLATFORM)


def test_the_bound_never_discards_the_best(answer):
    everything = tune(MODEL, PLATFORM, bounds=False)
    assert answer.best == everything.best
    assert answer.top == everything.top


def test_many_virtual_stages_are_tried_where_few_are_fast():
    deep = {**MODEL, "layers": 40}
    over = ["pp=2,4,8", "vp", "mbs=1", "zero=0,1"]
    found = tune(deep, PLATFORM, over=over)
    assert found.best.settings["parallel.virtual_stages"] == 10
    assert found.best == tune(deep, PLATFORM, over=over, bounds=False).best


def test_no_prediction_lies_below_its_bound():
    bound = Bound(load_platform(PLATFORM))
    found = space(MODEL, gpus=[8], per_node=8)
    for settings in found.candidates[::7]:
        row = evaluate(found.document, Trial(settings, PLATFORM, intervals=False), "t")
        if row.priced:
            least = bound.row(found.document, Trial(settings, PLATFORM), "t")
            assert row.step_time_us >= least.step_time_us > 0 and row.tokens_per_s <= least.tokens_per_s


def test_the_best_comes_first_and_fits(answer):
    assert all(row.fit >= SURE and row.low_us < row.step_time_us < row.high_us for row in answer.top)
    fastest = min(r.step_time_us for r in answer.rows if r.priced and r.fit >= SURE)
    assert answer.best.step_time_us <= 1.02 * fastest  # the best are walked, the others composed
    assert answer.best.step_time_us == min(row.step_time_us for row in answer.top)


def test_the_fastest_that_fits_comes_first():
    def row(tensor, ms, fit):
        return Row(
            {"parallel.tensor": tensor}, PLATFORM, step_time_us=1e3 * ms, samples_per_s=1e3 / ms, fit=fit
        )

    rows = [row(1, 101, 1.0), row(8, 100, 0.95), row(2, 90, 0.5), row(4, 104, 0.99)]
    assert [r.step_time_us / 1e3 for r in ranked(rows)] == [100, 101, 104, 90]
    assert [r.step_time_us / 1e3 for r in best_rows(rows, "time", 2)] == [100, 101]
    assert [r.step_time_us / 1e3 for r in best_rows(rows, "time", 2, min_fit=0.5)] == [90, 100]


def test_only_what_fits_is_called_too_close(answer):
    def row(micro, ms, fit):
        settings = {"parallel.micro_batch": micro}
        return Row(settings, PLATFORM, step_time_us=1e3 * ms, samples_per_s=1e3 / ms, fit=fit, memory_gb=1.0)

    rows = [row(1, 100, 1.0), row(2, 101, 0.5), row(4, 102, 0.9), row(8, 99, 0.1), row(16, 130, 1.0)]
    found = Space({}, (), {}, {})
    made = _answer(found, Search(platform=PLATFORM), rows, best_rows(rows, "time", 1), 0.0)
    assert [r.settings["parallel.micro_batch"] for r in made.ties] == [4]
    said = "\n".join(remarks(made))
    assert "≈ too close to the best to call: 1 configuration; measure it as well." in said
    assert "not in the table: mbs 4" in said
    marked = [r for r in answer.top if noise_mark(r, answer)]
    assert len(marked) <= len(answer.ties)


@pytest.mark.parametrize(("fit", "offered"), [(0.29, False), (0.3, True), (0.89, True), (0.9, False)])
def test_what_hardly_fits_is_not_worth_a_try(fit, offered):
    best = Row({"a": 1}, PLATFORM, step_time_us=1e5, samples_per_s=10.0, fit=1.0)
    tight = Row({"a": 2}, PLATFORM, step_time_us=5e4, samples_per_s=20.0, fit=fit)
    first = [best] if fit < SURE else [tight]
    made = _answer(Space({}, (), {}, {}), Search(platform=PLATFORM), [best, tight], first, 0.0)
    assert (made.maybe is not None) is offered
    listed = {0.3: "fits with 30 %); --min-fit 0.3", 0.79: "fits with 79 %); --min-fit 0.75"}
    assert listed.get(fit, "") in "\n".join(remarks(made))


def test_of_what_may_fit_the_largest_expected_gain_is_named():
    best = Row({"a": 1}, PLATFORM, step_time_us=1e5, samples_per_s=10.0, fit=1.0)
    rows = [
        Row({"a": fit}, PLATFORM, step_time_us=us, samples_per_s=1e6 / us, fit=fit)
        for us, fit in ((94e3, 0.5), (95e3, 0.85), (99e3, 0.89))
    ]
    made = _answer(Space({}, (), {}, {}), Search(platform=PLATFORM), [best, *rows], [best], 0.0)
    assert made.maybe == rows[1]


UNNAMED = {**MODEL, "training": {"precision": "bf16"}}


@pytest.mark.parametrize("parallel", [{"data": 8}, {"data": 8, "zero": "fsdp"}], ids=["whole", "sharded"])
def test_zero_does_not_change_the_framework(parallel):
    document = {**UNNAMED, "parallel": parallel}
    usual = stepsight.predict(document, PLATFORM).setup.framework
    found = tune(document, PLATFORM, over=["zero", "micro_batch=1"])
    assert {r.framework for r in found.rows} == {usual} == {found.framework}
    stages = {0, 2, 3} if usual == "torchtitan" else {0, 1, 2, 3}
    assert {r.settings["parallel.zero"] for r in found.rows} == stages
    rows = sweep(document, PLATFORM, over=["parallel.zero=1,3"])
    assert [r.framework for r in rows] == [usual, usual]


def test_frameworks_can_be_compared():
    found = tune(UNNAMED, PLATFORM, over=["training.framework=megatron,torchtitan", "zero=0,3"])
    assert {r.framework for r in found.rows} == {"megatron", "torchtitan"}
    assert found.framework == ""


def test_each_framework_has_its_best():
    found = tune(UNNAMED, PLATFORM, over=["training.framework=megatron,deepspeed"])
    priced = [r.framework for r in found.rows if r.priced]
    assert min(priced.count("megatron"), priced.count("deepspeed")) >= 5
    assert "parallel.tensor" in found.best.settings


def test_modules_are_recomputed_where_that_is_just_enough():
    over = ["tp=1", "pp=1", "zero=2", "mbs=1", "recompute"]
    megatron = ["framework=megatron"]
    found = tune("llama3-8b", PLATFORM, global_batch=64, over=over, assignments=megatron)
    by_kind = {r.settings["training.recompute"]: r for r in found.rows}
    assert by_kind["none"].fit < SURE <= found.best.fit
    assert found.best.settings["training.recompute"] == '["mlp_act"]'
    for kind in ('["mlp_act","layernorm"]', '["mlp"]', "full"):
        assert by_kind[kind].reason == "slower than recompute mlp_act, which fits"
    line = found.predict_line(found.best)
    assert "--set 'recompute=[\"mlp_act\"]'" in line and line.count("framework=") == 1


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_the_cheapest_is_found_without_pricing_all(least):
    asked = {
        "gpus": [2, 4, 8],
        "objective": "cost",
        "price_per_gpu_hour": 2.0,
        "over": ["tp,zero,mbs,recompute"],
    }
    everything = tune(MODEL, PLATFORM, bounds=False, **asked)
    fastest = max(r.tokens_per_s for r in everything.rows if r.priced)
    slow = [r for r in everything.rows if r.priced and r.tokens_per_s < least * fastest]
    seen = []
    found = tune(
        MODEL, PLATFORM, least_tokens_per_s=least * fastest, progress=lambda *now: seen.append(now), **asked
    )
    assert found.counts["bounded"] > everything.counts["bounded"]
    in_time = [r for r in everything.rows if r.priced and r not in slow and r.fit >= SURE]
    assert found.best.settings == min(in_time, key=lambda r: score(r, "cost")).settings
    assert seen[0][2] is None  # bounds take time as well
    assert {total for _, total, _ in seen} == {len(everything.rows)}


def test_shares_add_up_to_the_step(answer):
    for row in answer.top:
        assert sum(row.shares.values()) == pytest.approx(1.0, abs=0.02)


def test_neighbours_differ_in_one_dimension(answer):
    assert {n.dimension for n in answer.neighbours} >= {"parallel.micro_batch", "training.recompute"}
    for n in answer.neighbours:
        if n.row.fit >= SURE:
            assert n.slower >= -0.05


def test_nobody_on_the_front_is_beaten(answer):
    for row in answer.front:
        assert not any(
            o.step_time_us < row.step_time_us and o.memory_gb < row.memory_gb
            for o in answer.rows
            if o.priced and o.fit >= SURE
        )


def test_rows_make_a_table(answer):
    record = answer.records()[0]
    assert {"parallel.tensor", "step_time_us", "memory_gb", "tokens_per_s"} <= set(record)


def test_fewer_bytes_are_surer_to_fit():
    assert (
        fit_probability(40e9, 80e9) > 0.99 > fit_probability(75e9, 80e9) > 0.5 > fit_probability(85e9, 80e9)
    )


def test_nothing_fits_says_by_how_much_and_what_would():
    large = {**MODEL, "hidden": 8192, "layers": 80, "ffn": 28672, "heads": 64}
    with pytest.raises(InputError, match=r"nothing fits: .* GB too much; this would: 64 GPUs with tp .*GB"):
        tune(large, "2xA100-SXM4-40G", over=["tp", "micro_batch=1"])


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        ("meta-llama/Llama-3.1-405B", None, r"this would: (\d+) GPUs with tp \d"),
        ("meta-llama/Llama-3.1-405B", 8, r"this would: (\d+) GPUs and --global-batch (\d+) with tp \d"),
        ("deepseek-v3", None, r"this would: (\d+) GPUs with .*ep \d"),
    ],
)
def test_enough_gpus_for_a_large_model_are_found(model, batch, words):
    """One that no pipeline divides needs a batch that all of its replicas share."""
    with pytest.raises(InputError, match=words) as refused:
        tune(model, PLATFORM, global_batch=batch)
    gpus = int(re.search(words, str(refused.value))[1])
    assert 64 <= gpus <= 512


def test_single_changes_that_make_it_fit_are_named_with_their_memory():
    whole = {**MODEL, "global_batch": 4096, "parallel": {**MODEL.get("parallel", {}), "micro_batch": 2048}}
    with pytest.raises(InputError, match=r"this would: mbs 1 \(\d+ GB\)"):
        tune(whole, "2xA100-SXM4-40G", over=["tp=1"])


def test_tables_that_do_not_fit_are_not_recomputed():
    large = {**DLRM, "tables": [{**DLRM["tables"][0], "rows": 100_000_000}]}
    with pytest.raises(InputError, match=r"this would: 8 GPUs \(\d+ GB\)"):
        tune(large, "4xV100-SXM2", over=["batch=4096"])


@pytest.fixture
def step(tmp_path):
    program = RankProgram((Op("a", (Kernel.of("gemm", "bf16", batch=1, m=4000, n=4000, k=4000),)),))
    save_step(CapturedStep("train.py", "H100-SXM-80G", Job.replicated(program, 1)), tmp_path / "step.json")
    return tmp_path / "step.json"


def test_a_captured_step_is_tuned_over_where_it_runs(step):
    over = ["platform=1xV100-SXM2,1xH100-SXM", "platform.host.speed=1,2"]
    found = tune(step, "1xH100-SXM", over=over)
    assert found.best.settings["platform"] == "1xH100-SXM" and len(found.rows) == 4
    assert {n.dimension for n in found.neighbours} == {"platform", "platform.host.speed"}


def test_a_captured_step_says_what_can_be_varied(step):
    with pytest.raises(InputError, match=r"where it runs.*--over platform=A,B"):
        tune(step, "1xH100-SXM")
    with pytest.raises(InputError, match="has no fields"):
        tune(step, "1xH100-SXM", over=["batch=1,2"])
    with pytest.raises(InputError, match="--gpus"):
        tune(step, "1xH100-SXM", gpus=[1], over=["platform=1xV100-SXM2"])


def test_a_sweep_over_fields_of_the_platform_names_them_in_its_rows(step):
    rows = sweep(step, "1xH100-SXM", over=["platform.host.speed=1,2"])
    assert [r.settings for r in rows] == [{"platform.host.speed": 1}, {"platform.host.speed": 2}]


def test_a_captured_step_has_no_samples(step):
    (row,) = sweep(step, "1xH100-SXM", over=["platform.link.gbps=100"])
    assert row.samples_per_s == 0
    assert row.mfu > 0


def test_reasons_are_in_words():
    best = Row({}, "p", step_time_us=100.0, samples_per_s=1.0, shares={"gemm": 0.5, "host_bound_idle": 0.5})
    assert why(best, best) == "lost: 50 % waiting for the host"


def test_an_empty_space_says_why():
    with pytest.raises(InputError, match=r"no valid configuration: .*global batch"):
        tune(MODEL, PLATFORM, over=["micro_batch=3"])


def test_a_number_of_gpus_that_divides_nothing_is_blamed_and_another_named() -> None:
    with pytest.raises(InputError, match=r"^7 GPUs: .*global batch is 16; ask for --gpus 4, or a --global"):
        tune(MODEL, "7xH100-SXM", global_batch=16)


def test_more_gpus_than_there_are():
    with pytest.raises(InputError, match="16 of the 8 GPUs"):
        tune(MODEL, PLATFORM, gpus=[16])


def test_cost_needs_a_price():
    with pytest.raises(InputError, match="price"):
        tune(MODEL, PLATFORM, objective="cost")


def test_cost_prefers_fewer_gpus():
    found = tune(
        MODEL, PLATFORM, gpus=[2, 8], over=["tp=1", "micro_batch"], objective="cost", price_per_gpu_hour=2.0
    )
    assert found.best.ranks == 2
    assert found.best.cost_per_step == pytest.approx(2.0 * 2 * found.best.step_time_us / 3.6e9)


def test_a_dlrm_is_tuned_by_its_throughput():
    found = stepsight.tune(
        DLRM, "4xV100-SXM2", over=["sharding=chunks,size_lookup_greedy", "batch=1024,4096"]
    )
    assert found.best.settings["batch"] == 4096
    assert all(row.priced for row in found.rows)


def test_a_dlrm_is_tuned_with_the_plan_that_shard_finds():
    found = stepsight.tune(DLRM, "4xV100-SXM2", over=["sharding=search,random,chunks"])
    by_name = {row.settings["parallel.sharding"]: row.step_time_us for row in found.rows}
    workload = parse_workload(DLRM | {"parallel": {"ranks": 4}}, "dlrm")
    assert by_name["search"] == pytest.approx(choose(workload, load_platform("4xV100-SXM2")).winner.step_us)
    assert by_name["search"] <= 1.02 * min(by_name.values())
    searched = next(row for row in found.rows if row.settings["parallel.sharding"] == "search")
    assert found.predict_line(searched).startswith("stepsight shard ")


def test_a_search_is_on_one_platform():
    with pytest.raises(InputError, match="use stepsight sweep"):
        tune(MODEL, PLATFORM, over=["platform=8xH100-SXM,8xA100-SXM4-40G"])


def test_the_batch_of_a_dlrm_is_no_global_batch():
    with pytest.raises(InputError, match="--over batch="):
        tune(DLRM, "4xV100-SXM2", global_batch=4096)


def test_batches_of_different_size_are_compared_by_the_sample():
    found = tune(MODEL, PLATFORM, over=["global_batch=8,64", "micro_batch=1"])
    assert {r.status for r in found.rows} == {"priced"}
    assert found.best.samples_per_s == max(r.samples_per_s for r in found.rows)


def test_a_neighbour_that_is_too_large_says_so():
    found = tune({**MODEL, "global_batch": 1024}, PLATFORM, over=["micro_batch"])
    wide = [n for n in found.neighbours if n.slower is None]
    assert all("needs" in n.row.reason for n in wide) and len(found.neighbours) == 2


def test_lists_can_be_swept():
    rows = sweep(DLRM, "4xV100-SXM2", over=["dense.top=[64,1],[64,32,1]"])
    assert [r.status for r in rows] == ["priced", "priced"]


def test_a_swept_batch_takes_the_place_of_the_other_way_to_state_it():
    model = {k: v for k, v in MODEL.items() if k != "global_batch"} | {"batch_per_rank": 2}
    assert all(r.priced for r in sweep(model, PLATFORM, over=["global_batch=8,16"]))


def test_a_known_model_without_a_batch_sees_one_sequence_per_replica():
    swept = sweep("llama3-8b", PLATFORM, over=["tp=1,2"], assignments=["layers=2"])
    stated = sweep("llama3-8b", PLATFORM, over=["tp=1,2"], assignments=["layers=2", "batch_per_rank=1"])
    assert [r.step_time_us for r in swept] == [r.step_time_us for r in stated]


def test_a_changed_platform_file_is_asked_again(tmp_path):
    platform = tmp_path / "p.toml"
    text = 'gpu = "V100-SXM2"\ngpus_per_node = 4\nprice_per_gpu_hour = {}\n'
    costs = []
    for price in (1.5, 30.0):
        platform.write_text(text.format(price))
        (row,) = sweep(DLRM, str(platform), over=["batch=1024"], resume=tmp_path / "trials.jsonl")
        costs.append(row.cost_per_step)
    assert costs[1] == pytest.approx(20 * costs[0])


def test_a_changed_recipe_file_is_asked_again(tmp_path):
    own, steps = tmp_path / "own.toml", []
    for recompute in ("none", "full"):
        own.write_text(f'like = "torchtitan-2025"\n[training]\nrecompute = "{recompute}"\n')
        (row,) = sweep(
            {**MODEL, "training": {}}, PLATFORM, over=[f"recipe={own}"], resume=tmp_path / "trials.jsonl"
        )
        steps.append(row.step_time_us)
    assert steps[1] > 1.2 * steps[0]


def test_a_sweep_has_a_row_for_every_combination_in_order():
    rows = sweep(DLRM, over=["batch=1024,2048", "platform=4xV100-SXM2,8xA100-SXM4-40G"])
    assert [(r.platform, r.settings["batch"]) for r in rows] == [
        ("4xV100-SXM2", 1024), ("4xV100-SXM2", 2048), ("8xA100-SXM4-40G", 1024), ("8xA100-SXM4-40G", 2048),
    ]  # fmt: skip
    assert all(r.priced for r in rows)


def test_a_sweep_over_the_platform_itself():
    slow, fast = sweep(DLRM, "4xV100-SXM2", over=["platform.host.speed=0.5,2"])
    assert slow.step_time_us > fast.step_time_us


def test_a_refused_row_has_its_reason():
    (row,) = sweep(DLRM, "4xV100-SXM2", over=["batch=1022"])
    assert row.status == "illegal" and "1022" in row.reason


def test_an_interrupted_search_goes_on_where_it_was(tmp_path):
    path = tmp_path / "trials.jsonl"
    rows = sweep(DLRM, "4xV100-SXM2", over=["batch=1024,2048"], resume=path)
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    path.write_text(lines[0] + "\n" + lines[1][:20])
    assert sweep(DLRM, "4xV100-SXM2", over=["batch=1024,2048"], resume=path) == rows


def test_a_resume_file_of_something_else(tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(InputError, match="line 1"):
        sweep(DLRM, "4xV100-SXM2", over=["batch=1024"], resume=path)
