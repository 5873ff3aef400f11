"""PARAM comms outputs."""

from __future__ import annotations

import pytest

from stepsight.collectives.benchmark_files import read_param_comms
from stepsight.errors import InputError

ROW = (
    "\tCOMMS-RES-all_to_all-float32   1048576   32768   86.3   87.0   90.1   80.0   95.0   12.150   10.631\n"
)
OTHER = "\tCOMMS-RES-incast   1048576   32768   86.3   87.0   90.1   80.0   95.0   12.150   10.631\n"


def test_the_median_over_ranks_is_the_time(tmp_path):
    path = tmp_path / "param.txt"
    path.write_text("world_size: 8\n" + ROW)
    (timing,) = read_param_comms(path).timings
    assert (timing.kind, timing.ranks, timing.bytes, timing.time_us) == ("all_to_all", 8, 1048576, 86.3)


def test_what_has_no_model_or_is_cut_is_left_out_and_named(tmp_path):
    path = tmp_path / "param.txt"
    path.write_text(ROW + OTHER + ROW[:60])
    run = read_param_comms(path, ranks=4)
    assert len(run.timings) == 1
    assert "incast" in run.skipped[0] and "cut short" in run.skipped[1]


def test_without_ranks_or_rows_it_is_an_error(tmp_path):
    path = tmp_path / "param.txt"
    path.write_text(ROW)
    with pytest.raises(InputError, match="--ranks"):
        read_param_comms(path)
    path.write_text("COMMS-RES-")
    with pytest.raises(InputError, match="no complete row"):
        read_param_comms(path, ranks=8)
