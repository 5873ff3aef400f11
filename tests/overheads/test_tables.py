"""Host overheads by operator."""

from __future__ import annotations

import pytest

from stepsight.errors import InputError
from stepsight.overheads.tables import (
    LAUNCH,
    OpStats,
    Overheads,
    Stat,
    class_defaults,
    eras,
    op_class,
    plain_name,
)


def _table(**ops: OpStats) -> Overheads:
    named = {name.replace("__", "::"): stats for name, stats in ops.items()}
    return Overheads(named, class_defaults(named), {"cudaLaunchKernel": Stat(6, 1, 10, 4)}, "made", "host")


LINEAR = OpStats(t1=Stat(10), t2=Stat(40, 4, 8, 2), t3=Stat(12), t5=Stat(5), whole=Stat(3))
TABLE = _table(aten__linear=LINEAR, aten__view=OpStats(t1=Stat(10), whole=Stat(2)))


def test_a_known_operator_answers_with_its_own_means():
    times = TABLE.of("aten::linear")
    assert (times.t1, times.t2, times.t3, times.t4, times.t5) == (10, 40, 12, 6, 5)


def test_without_launches_t5_is_the_whole_host_time():
    assert TABLE.of("aten::linear", launches=0).t5 == 3
    assert TABLE.of("aten::view").t5 == 2


def test_an_unknown_operator_costs_what_its_class_does_and_never_nothing():
    times = TABLE.of("aten::never_seen")
    assert times.t2 == 40
    assert not TABLE.known("aten::never_seen")


def test_the_engines_prefix_and_overload_numbers_do_not_hide_an_operator():
    table = _table(AddmmBackward0=OpStats(t2=Stat(46)))
    assert table.of("autograd::engine::evaluate_function: AddmmBackward1").t2 == 46


def test_the_profilers_cost_can_be_put_back():
    assert TABLE.of("aten::linear", with_profiler=True).t2 == 42


def test_scaling_scales_every_time():
    assert TABLE.scaled(0.5).of("aten::linear").t2 == 20


def test_what_is_saved_loads_again(tmp_path):
    TABLE.save(tmp_path / "o.json")
    loaded = Overheads.load(tmp_path / "o.json")
    assert loaded.of("aten::linear") == TABLE.of("aten::linear")
    assert loaded.provenance == "made"


def test_a_broken_file_names_itself(tmp_path):
    (tmp_path / "o.json").write_text("{}")
    with pytest.raises(InputError, match=r"o\.json"):
        Overheads.load(tmp_path / "o.json")


def test_a_set_over_another_answers_first():
    mine = _table(aten__linear=OpStats(t2=Stat(7)))
    merged = mine.over(TABLE)
    assert merged.of("aten::linear").t2 == 7
    assert merged.of("aten::view").t5 == 2


@pytest.mark.parametrize("era", eras())
def test_every_shipped_era_answers_for_every_class(era):
    table = Overheads.default(era)
    for name in (
        "aten::linear",
        "aten::view",
        "AddmmBackward0",
        "Optimizer.step#SGD.step",
        "nccl:all_reduce",
        "x",
    ):
        times = table.of(name, launches=1)
        assert times.t2 + times.t4 > 0


def test_newer_hosts_are_faster():
    v100, h100 = (Overheads.default(era) for era in ("v100", "h100"))
    assert h100.launches[LAUNCH].mean < v100.launches[LAUNCH].mean
    assert h100.of("aten::linear").t2 < v100.of("aten::linear").t2


def test_an_unknown_era_gets_the_oldest():
    assert Overheads.default("z9000").host == Overheads.default("v100").host


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::view", "view"), ("aten::mm", "forward"), ("ReluBackward0", "backward"),
        ("torch::autograd::AccumulateGrad", "backward"), ("nccl:all_reduce", "collective"),
        ("Optimizer.step#Adam.step", "optimizer"), ("aten::copy_", "copy"),
    ],
)  # fmt: skip
def test_operators_have_a_class(name, kind):
    assert op_class(name) == kind


def test_plain_names_lose_the_engines_prefix():
    assert plain_name("autograd::engine::evaluate_function: MulBackward0") == "MulBackward0"
