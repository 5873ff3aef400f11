"""Traces of every version and state open, or say why not."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from stepsight import load_workload, predict
from stepsight.errors import InputError
from stepsight.trace.files import TraceFile, mended, salvaged, trace_files
from stepsight.trace.kineto import looks_like_kineto, read_kineto
from stepsight.trace.run import load_trace
from tests.trace.making import Made, made_run, two_step_training

DATA = Path(__file__).parent / "data"


def test_a_trace_keeps_rank_world_device_and_events_by_kind():
    made = Made(rank=3, world=8)
    made.op("aten::relu", 10, 5)
    made.launch(11, 2, "relu_kernel", 20, 4)
    trace = read_kineto(made.file())
    assert (trace.rank, trace.world_size, trace.device) == (3, 8, "Tesla V100-SXM2-16GB")
    assert [len(x) for x in (trace.host_ops, trace.runtime, trace.gpu)] == [1, 1, 1]


def test_events_come_back_in_time_order():
    made = Made()
    made.op("second", 20, 1)
    made.op("first", 10, 1)
    assert [e.name for e in read_kineto(made.file()).host_ops] == ["first", "second"]


def test_torch_1_8_spells_categories_differently():
    events = [
        {"ph": "X", "cat": "Operator", "name": "aten::add", "pid": 1, "tid": "1", "ts": 1, "dur": 5,
         "args": {"Input dims": [[4, 4]], "External id": 2}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": "1", "ts": 2, "dur": 1,
         "args": {"correlation": 9}},
        {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 4, "dur": 3,
         "args": {"correlation": 9, "stream": 7}},
    ]  # fmt: skip
    trace = read_kineto(TraceFile("old.json", json.dumps({"traceEvents": events}).encode()))
    assert trace.host_ops[0].shapes() == [[4, 4]]
    assert len(trace.gpu) == len(trace.runtime) == 1


def test_a_bare_list_of_events_is_a_trace():
    content = json.dumps([{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]).encode()
    assert looks_like_kineto(content)
    assert read_kineto(TraceFile("list.json", content)).host_ops[0].name == "a"


def test_a_cut_file_gives_what_it_holds_and_says_so():
    content = two_step_training().content()
    trace = read_kineto(TraceFile("cut.json", content[: len(content) // 2]))
    assert trace.gpu and trace.host_ops
    assert "lost" in trace.warnings[0]


def test_a_cut_gzip_gives_what_it_holds_and_says_so(tmp_path):
    made = two_step_training()
    made.events *= 40
    packed = gzip.compress(made.content())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    file = next(iter(trace_files([path])))
    assert "gzip" in file.warnings[0]
    assert read_kineto(file).gpu


def test_nan_and_stray_backslashes_are_mended():
    content = rb'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a\d", "ts": 1, "dur": NaN}]}'
    assert json.loads(mended(content))["traceEvents"][0]["name"] == "a\\d"


def test_a_predicted_timeline_is_no_trace(tmp_path: Path) -> None:
    predict(load_workload("examples/dlrm.toml"), "4xV100-SXM2").save_timeline(tmp_path / "made.json")
    with pytest.raises(InputError, match="timeline that stepsight predicted"):
        load_trace(tmp_path / "made.json")


def test_one_odd_event_does_not_cost_the_trace():
    made = two_step_training()
    made.events.insert(3, {"ph": "X", "cat": "cpu_op", "name": "odd", "ts": {"not": "a time"}})
    trace = read_kineto(made.file())
    assert len(trace.gpu) == 9
    assert "1 event " in trace.warnings[0]


def test_salvaging_keeps_the_leading_fields():
    document, lost = salvaged(b'{"schema": "1.0.1", "nodes": [{"id": 1, "name": "a"}, {"id": 2, "na')
    assert document == {"schema": "1.0.1", "nodes": [{"id": 1, "name": "a"}]}
    assert lost > 0


def test_a_file_without_events_is_refused_with_the_fix():
    with pytest.raises(InputError, match="ProfilerActivity"):
        read_kineto(TraceFile("empty.json", b'{"traceEvents": []}'))


def test_archives_and_folders_are_searched(tmp_path):
    content = two_step_training().content()
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("inside/rank0.json")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.json").write_bytes(content)
    paths = [f.path for f in trace_files([tmp_path])]
    assert [p.split("/")[-1] for p in paths] == ["rank0.json", "b.json"]


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="no trace files"):
        list(trace_files([tmp_path]))


def test_a_profile_of_this_torch_opens():
    trace = read_kineto(next(iter(trace_files([DATA / "toy_cpu_kineto.json.gz"]))))
    assert {"aten::linear", "aten::relu"} <= {e.name for e in trace.host_ops}
    assert sum(e.name.startswith("ProfilerStep") for e in trace.annotations) == 2


@pytest.mark.data
def test_every_measured_trace_opens(measured_data):
    opened = 0
    for file in trace_files([measured_data / "traces" / "tracelens" / "torch_compile_triton",
                             measured_data / "traces" / "amd_MI250",
                             measured_data / "traces" / "critical_path_units"]):  # fmt: skip
        opened += bool(read_kineto(file).gpu)
    assert opened >= 8


def test_two_runs_in_one_folder_are_asked_about(tmp_path):
    two_step_training().save(tmp_path, "first.json")
    two_step_training(kernel_us=300).save(tmp_path, "second.json")
    with pytest.raises(InputError, match="holds 2 runs, which are not mixed"):
        load_trace(tmp_path)


def test_runs_in_folders_are_named_by_their_folder(tmp_path):
    for run, kernel_us in (("a", 200.0), ("b", 300.0)):
        (tmp_path / run).mkdir()
        two_step_training(kernel_us=kernel_us).save(tmp_path / run, "trace.json")
    with pytest.raises(InputError, match=r"from a/trace.json; .* from b/trace.json.*name the folder"):
        load_trace(tmp_path)


def test_a_trace_that_lies_there_packed_and_plain_is_one_rank(tmp_path):
    content = two_step_training().save(tmp_path, "rank.json").read_bytes()
    (tmp_path / "rank.json.gz").write_bytes(gzip.compress(content))
    run = load_trace(tmp_path)
    assert (len(run.ranks), run.world_size) == (1, 1)
    assert "rank.json.gz is a copy of rank.json: it counts once" in run.warnings


def test_a_run_has_no_fewer_ranks_than_its_process_groups_name(tmp_path):
    path = two_step_training().save(tmp_path)
    content = path.read_bytes().replace(
        b'"world_size": 1', b'"world_size": 0, "pg_config": [{"pg_name": "0", "ranks": [0, 1, 2, 3]}]'
    )
    path.write_bytes(content)
    assert load_trace(tmp_path).world_size == 4


def test_a_trace_without_a_number_of_ranks_takes_that_of_its_collectives():
    made = two_step_training()
    made._add("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float", 900, 50, 20, 0, **{"Group size": 8})
    assert made_run(made).world_size == 8


def test_a_chakra_file_alone_is_refused_with_its_reason(tmp_path):
    (tmp_path / "rank.0.et").write_bytes(b"\x02\x08\x01")
    with pytest.raises(InputError, match="Chakra traces only"):
        load_trace(tmp_path)


def test_a_gzip_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSIGHT_LIMIT_EXPANDED_BYTES", "1000000")
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 5_000_000))
    with pytest.raises(InputError, match="unpacks to more than"):
        load_trace(tmp_path)


def test_a_trace_of_too_many_events_is_refused_with_the_limit_to_raise(monkeypatch):
    monkeypatch.setenv("STEPSIGHT_LIMIT_EVENTS", "3")
    with pytest.raises(InputError, match="STEPSIGHT_LIMIT_EVENTS"):
        read_kineto(two_step_training().file())


def test_an_unknown_category_is_passed_over():
    made = two_step_training()
    made._add("of_a_later_profiler", "x", 0.0, 1.0, 7)
    assert len(read_kineto(made.file()).gpu) == len(read_kineto(two_step_training().file()).gpu)


def test_equal_names_and_lists_are_kept_once_and_the_content_can_go():
    first, second, *_ = [
        e for e in read_kineto(two_step_training().file()).host_ops if e.name == "aten::relu"
    ]
    assert first.name is second.name
    assert first.args.dims is second.args.dims
    assert first.shapes() == [[256, 64]]
