"""Every sample survives an interruption; nothing is measured twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsight.calibrate.journal import FILE, Journal, kernel_from_record, kernel_record
from stepsight.errors import InputError
from stepsight.program.job import Kernel


def test_a_kernel_survives_the_journal() -> None:
    kernel = Kernel.of("gemm", "fp32", operator="dgrad", batch=1, m=3, n=4, k=5)
    assert kernel_from_record(kernel_record(kernel)) == kernel


def test_a_resumed_journal_knows_what_was_measured(tmp_path: Path) -> None:
    Journal(tmp_path, resume=False).add("kernels", [{"name": "relu", "times_us": [[1.0, 2.0]]}])
    again = Journal(tmp_path, resume=True)
    assert again.known("kernels", {"name": "relu"})
    assert not again.known("kernels", {"name": "gelu"})
    assert again.of("kernels")[0]["times_us"] == [[1.0, 2.0]]


def test_a_machine_with_another_network_keeps_its_kernels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    Journal(tmp_path / "a", resume=False).add("kernels", [{"name": "relu"}])
    second = Journal(tmp_path / "b", resume=False)
    second.take_from(tmp_path / "a", ("kernels", "lookups"))
    second.take_from(tmp_path / "a", ("kernels", "lookups"))
    assert [s["name"] for s in Journal(tmp_path / "b", resume=True).of("kernels")] == ["relu"]
    with pytest.raises(InputError, match="no calibration"):
        second.take_from(tmp_path, ("kernels",))


def test_a_line_cut_off_by_an_interruption_is_left_out(tmp_path: Path) -> None:
    Journal(tmp_path, resume=False).add("kernels", [{"name": "relu", "times_us": [[1.0]]}])
    with (tmp_path / FILE).open("a") as file:
        file.write('{"stage": "kernels", "na')
    assert [s["name"] for s in Journal(tmp_path, resume=True).samples] == ["relu"]


def test_an_earlier_calibration_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    Journal(tmp_path, resume=False).add("kernels", [{"name": "relu"}])
    with pytest.raises(InputError, match="--resume"):
        Journal(tmp_path, resume=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_with_its_cure(tmp_path: Path) -> None:
    journal = Journal(tmp_path, resume=False)
    (tmp_path / FILE).symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"disk is full.*--resume"):
        journal.add("kernels", [{"name": "relu"}])


@pytest.mark.parametrize("change", [{"times_us": [1.0]}, {"family": {}}, {"check": "0" * 24}, {"more": 1}])
def test_a_line_that_was_edited_is_refused_by_its_number(tmp_path, change):
    sample = {"family": "gemm", "times_us": [1.0, 2.0]}
    Journal(tmp_path, resume=False).add("kernels", [sample, sample])
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    (tmp_path / FILE).write_text(json.dumps(lines[0]) + "\n" + json.dumps({**lines[1], **change}) + "\n")
    with pytest.raises(InputError, match="line 2: is not a sample"):
        Journal(tmp_path, resume=True)


@pytest.mark.parametrize("line", ["[1]", "3", '{"stage": "kernels"}'])
def test_a_line_that_calibrate_did_not_write_is_refused(tmp_path, line):
    (tmp_path / FILE).write_text(line + "\n")
    with pytest.raises(InputError, match="line 1: is not a sample"):
        Journal(tmp_path, resume=True)
