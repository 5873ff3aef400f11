"""What ``stepsight inspect`` shows."""

from __future__ import annotations

import json
from html import escape

import pytest
from click.testing import CliRunner

from stepsight.commands.inspect import command
from stepsight.prediction.traced.inspection import inspect_run
from stepsight.prediction.traced.predict import predict_trace
from stepsight.report.inspection import device_of, facts, inspection_page, listings
from tests.trace.making import Made, made_run, two_step_training


def _two_ranks() -> list[Made]:
    traces = []
    for rank, arrives in ((0, 20.0), (1, 70.0)):
        made = Made(rank, 2)
        made.step(0, 0, 200)
        made.op("aten::mul", 2, 3)
        made.launch(3, 1, "mul", 8, 5)
        made.annotation("nccl:all_reduce", arrives - 15, 12)
        made.launch(arrives - 10, 5, "ncclKernel_AllReduce", arrives, 100 - arrives, stream=20)
        traces.append(made)
    return traces


def test_the_rank_that_arrives_last_is_the_straggler():
    seen = inspect_run(made_run(*_two_ranks()))
    assert seen.straggler == 1
    assert [r.waiting_us for r in seen.ranks] == [50, 0]


def test_exposed_communication_is_what_no_compute_covers_once_all_have_arrived():
    seen = inspect_run(made_run(*_two_ranks()))
    assert [r.communication_us for r in seen.ranks] == [80, 30]
    assert [r.exposed_communication_us for r in seen.ranks] == [30, 30]


def test_parts_of_ranks_that_enter_one_after_the_other_add_up_to_the_step():
    late, early = _two_ranks()
    for event in early.events:
        event["ts"] -= 40 if event["ts"] < 30 else 0
    run = made_run(late, early)
    found = predict_trace(run)
    step_us = found.step_time_us
    assert sum(found.breakdown_us.values()) == pytest.approx(step_us)
    for rank in found.ranks:
        parts = (rank.compute_us, rank.exposed_communication_us, rank.rank_wait_us, rank.idle_us)
        assert rank.step_us == pytest.approx(step_us) == pytest.approx(sum(parts))
        assert rank.gpu_active_us <= step_us
        seen = inspect_run(run).ranks[rank.rank]
        assert seen.exposed_communication_us == pytest.approx(rank.exposed_communication_us)


def test_a_host_that_runs_ahead_does_not_lengthen_the_step_of_its_rank():
    made = two_step_training(host_us=50, kernel_us=200)
    seen = inspect_run(made_run(made))
    (rank,) = seen.ranks
    assert rank.span_us == seen.measured_us
    assert rank.busy_us + rank.idle_us == pytest.approx(seen.measured_us)


def test_busy_and_idle_make_up_the_span():
    rank = inspect_run(made_run(two_step_training())).ranks[0]
    assert rank.busy_us + rank.idle_us == pytest.approx(rank.span_us)


def test_a_gpu_bound_step_has_its_kernels_on_the_critical_path():
    seen = inspect_run(made_run(two_step_training(host_us=50, kernel_us=200)))
    assert next(iter(seen.critical_path_us)) != "host"


def test_a_host_bound_step_has_the_host_on_the_critical_path():
    seen = inspect_run(made_run(two_step_training(host_us=300, kernel_us=20)))
    assert next(iter(seen.critical_path_us)) == "host"


def test_coverage_adds_up_to_one():
    assert sum(inspect_run(made_run(two_step_training())).coverage.values()) == pytest.approx(1)


def test_the_page_holds_every_table_and_needs_nothing_else():
    seen = inspect_run(made_run(two_step_training(host_us=300, kernel_us=20)))
    page = inspection_page(seen)
    for title in (
        "Where the step goes, by rank",
        "Why the GPU idles",
        "Critical path",
        "Top operators",
        "Top kernels",
    ):
        assert title in page
    for listing in listings(seen):
        assert all(escape(str(row[0])) in page for row in listing.rows if listing.title.startswith("top"))
    assert "://" not in page


def test_the_command_prints_json_and_writes_the_page(tmp_path):
    path = two_step_training().save(tmp_path)
    result = CliRunner().invoke(command, [str(path), "--json", "--html", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["measured_us"] == pytest.approx(600)
    assert (tmp_path / "page.html").exists()


def test_the_command_prints_tables(tmp_path):
    result = CliRunner().invoke(command, [str(two_step_training().save(tmp_path))])
    assert "top kernels" in result.output


def test_a_trace_of_a_cpu_is_called_one_and_shows_its_operators() -> None:
    made = Made(device="")
    made.op("aten::linear", 0, 100, [[8, 8], [8, 8]])
    made.op("aten::addmm", 10, 80, [[8], [8, 8], [8, 8]])
    made.op("aten::relu", 120, 30, [[8, 8]])
    seen = inspect_run(made_run(made))
    assert seen.cpu_only
    assert [(o.name, o.host_us) for o in seen.operators] == [
        ("aten::addmm", 80.0), ("aten::relu", 30.0), ("aten::linear", 20.0),
    ]  # fmt: skip
    assert device_of(seen) == "a CPU"
    assert any("no GPU work was recorded" in line for line in facts(seen))
