"""nccl-tests and rccl-tests outputs, whole, cut and wrong."""
# ruff: noqa: E501 (the benchmark's own lines are that long)

from __future__ import annotations

import pytest

from stepsight.collectives.benchmark_files import read_nccl_tests
from stepsight.errors import InputError

HEAD = """\
# nThread 1 nGpus 4 minBytes 1024 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  11 on  node1 device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  11 on  node1 device  1 [0x0a] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid  12 on  node2 device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid  12 on  node2 device  1 [0x0a] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                 in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
        1024           256     float     sum      -1    14.00    0.07    0.11      0    13.00    0.08    0.12      0
     4194304       1048576     float     sum      -1    60.00   69.91  104.86      0    58.00   72.32  108.47      0
"""
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 53.4\n#\n"


def write(tmp_path, text, name="all_reduce.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_whole_output_gives_both_buffers_ranks_nodes_and_the_gpu(tmp_path):
    run = read_nccl_tests(write(tmp_path, HEAD + ROWS + TAIL))
    assert [(t.bytes, t.time_us) for t in run.timings] == [
        (1024, 14), (1024, 13), (4194304, 60), (4194304, 58),
    ]  # fmt: skip
    assert {(t.kind, t.ranks, t.nodes) for t in run.timings} == {("all_reduce", 4, 2)}
    assert run.gpu == "NVIDIA A100-SXM4-40GB" and run.skipped == ()


def test_the_program_named_in_the_output_goes_before_the_files_name(tmp_path):
    text = "# Collective test starting: alltoall_perf\n" + HEAD + ROWS + TAIL
    assert read_nccl_tests(write(tmp_path, text, "log.txt")).timings[0].kind == "all_to_all"


def test_old_outputs_without_operator_columns_are_read(tmp_path):
    rows = "   4194304  1048576  float    60.00   69.91  104.86  0e+00    58.00   72.32  108.47  0e+00\n"
    assert len(read_nccl_tests(write(tmp_path, HEAD + rows + TAIL)).timings) == 2


def test_a_long_time_is_not_taken_for_the_root_that_old_outputs_lack(tmp_path):
    rows = " 10737418240  2684354560  float  sum  90330  118.87  222.88  0  91945  116.78  218.96  0\n"
    run = read_nccl_tests(write(tmp_path, HEAD + rows + TAIL))
    assert [t.time_us for t in run.timings] == [90330, 91945]


def test_log_lines_and_launcher_prefixes_do_no_harm(tmp_path):
    noise = "node1:11:11 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n"
    rows = "".join(noise + "[1,0]<stdout>:" + row + "\n" for row in ROWS.splitlines())
    assert len(read_nccl_tests(write(tmp_path, HEAD + rows + TAIL)).timings) == 4


def test_an_output_cut_in_a_row_keeps_the_whole_rows_and_says_so(tmp_path):
    cut = HEAD + ROWS + "    16777216       4194304     float     sum      -1    182.0   92.1"
    run = read_nccl_tests(write(tmp_path, cut))
    assert len(run.timings) == 4
    assert any("cut short" in line for line in run.skipped)
    assert any("before the benchmark's summary" in line for line in run.skipped)


def test_an_output_without_a_whole_row_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no complete row"):
        read_nccl_tests(write(tmp_path, HEAD))


def test_rows_without_a_time_are_left_out_and_named(tmp_path):
    zero = "           0             0     float     sum      -1     0.00    0.00    0.00      0     0.00    0.00    0.00      0\n"
    run = read_nccl_tests(write(tmp_path, HEAD + zero + ROWS + TAIL))
    assert len(run.timings) == 4 and "0 bytes" in run.skipped[0]


def test_a_bandwidth_that_contradicts_size_and_time_is_an_error(tmp_path):
    in_ms = ROWS.replace("60.00", " 0.06").replace("58.00", " 0.058")
    with pytest.raises(InputError, match=r"line 13: mixed units"):
        read_nccl_tests(write(tmp_path, HEAD + in_ms + TAIL))


def test_two_tables_in_different_units_are_an_error(tmp_path):
    other = HEAD.replace("(us)", "(ms)")
    with pytest.raises(InputError, match="mixed units"):
        read_nccl_tests(write(tmp_path, HEAD + ROWS + TAIL + other))


def test_a_table_in_milliseconds_is_read_as_such(tmp_path):
    head = HEAD.replace("(us)", "(ms)")
    rows = "     4194304       1048576     float     sum      -1    0.060   69.91  104.86      0\n"
    assert read_nccl_tests(write(tmp_path, head + rows + TAIL)).timings[0].time_us == pytest.approx(60)


def test_without_devices_the_ranks_must_be_given(tmp_path):
    text = "\n".join(line for line in (HEAD + ROWS + TAIL).splitlines() if "Rank" not in line)
    path = write(tmp_path, text)
    with pytest.raises(InputError, match="--ranks"):
        read_nccl_tests(path)
    assert read_nccl_tests(path, ranks=8).timings[0].ranks == 8


def test_an_output_that_does_not_say_its_collective_asks_for_it(tmp_path):
    path = write(tmp_path, HEAD + ROWS + TAIL, "log.txt")
    with pytest.raises(InputError, match="which collective"):
        read_nccl_tests(path)
    assert read_nccl_tests(path, "broadcast").timings[0].kind == "broadcast"
