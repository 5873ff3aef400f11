"""Chakra files as they are written, and execution traces as they are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.prediction.traced.predict import predict_trace, trace_job
from stepsight.report.chakra import (
    COLL,
    COMP,
    ChakraNode,
    export_chakra,
    packed_field,
    to_varint,
    write_chakra,
)
from stepsight.trace.execution import link_et, looks_like_chakra, looks_like_et, read_execution_trace
from stepsight.trace.files import TraceFile, trace_files
from stepsight.trace.kineto import read_kineto
from stepsight.trace.link import link
from stepsight.trace.run import load_trace
from stepsight.workload.files import load_workload
from tests.trace.chakra_reading import fields, packed, read_chakra, varint
from tests.trace.making import Made, made_run, two_step_training

DATA = Path(__file__).parent / "data"


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_a_varint_comes_back(value):
    assert varint(to_varint(value))[0] == value


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**40)))
def test_packed_numbers_come_back(values):
    found = list(fields(packed_field(4, values)))
    assert (packed(found[0][1]) if found else []) == values


def test_a_pipeline_is_written_by_its_real_ranks_and_says_what_it_leaves_out(tmp_path):
    workload = load_workload(Path(__file__).parents[2] / "examples" / "llama3_70b_3d.toml")
    found = predict(workload, load_platform("8x8xH100-SXM-400G"))
    files = export_chakra(found.timeline, tmp_path, ranks=len(found.ranks))
    assert [f.name for f in files] == [f"step.{8 * stage}.et" for stage in range(8)]
    metadata = read_chakra(files[-1].read_bytes()).metadata
    assert (metadata["rank"], metadata["ranks"]) == (56, 64)
    skipped = found.timeline.micro_batches_left_out
    assert skipped and f"{skipped} micro-batches" in metadata["left_out"]
    assert "56 ranks" in metadata["left_out"]


ATTRIBUTES = st.dictionaries(
    st.text(min_size=1, max_size=8), st.integers(-(2**62), 2**62) | st.text(max_size=8) | st.booleans()
)
NODES = st.builds(
    ChakraNode, st.integers(0, 2**31), st.text(max_size=20), st.sampled_from([COMP, COLL]),
    st.lists(st.integers(0, 1000), max_size=3).map(tuple), st.just(()), st.integers(0, 10**9),
    st.integers(0, 10**9), ATTRIBUTES,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(NODES, min_size=1, max_size=5))
def test_what_is_written_is_read(nodes):
    trace = read_chakra(write_chakra({"schema": "test", "rank": 3}, nodes))
    assert list(trace.nodes) == nodes
    assert trace.metadata == {"schema": "test", "rank": 3}


def test_chakra_is_known_by_its_name_and_by_its_json_print():
    text = json.dumps({"attr": [{"name": "schema", "stringVal": "1.1.0"}]}) + json.dumps({"id": "1"})
    assert looks_like_chakra(TraceFile("a.json", text.encode()))
    assert looks_like_chakra(TraceFile("a.et", b""))


_SHAPES, _TYPES = [[2, 3]], ["Tensor(float)"]
FLAT = {
    "id": 5, "name": "aten::mm", "parent": 2, "rf_id": 3, "seq_id": 1, "tid": 1, "inputs": [], "outputs": [],
    "input_shapes": _SHAPES, "input_types": _TYPES,
}  # fmt: skip
NESTED = {
    "id": 5, "name": "aten::mm", "ctrl_deps": 2,
    "inputs": {"values": [], "shapes": _SHAPES, "types": _TYPES},
    "outputs": {"values": [], "shapes": [], "types": []},
    "attrs": [{"name": n, "value": v} for n, v in (("rf_id", 3), ("seq_id", 1), ("tid", 1))],
}  # fmt: skip


@pytest.mark.parametrize(("schema", "node"), [("1.0.1", FLAT), ("1.1.0-chakra.0.0.4", NESTED)])
def test_both_layouts_of_execution_traces_read_alike(schema, node):
    content = json.dumps({"schema": schema, "nodes": [node]}).encode()
    assert looks_like_et(content)
    (read,) = read_execution_trace(TraceFile("et.json", content)).nodes
    assert (read.record_id, read.thread, read.shapes) == (3, 1, ([2, 3],))


def test_the_execution_trace_of_this_torch_opens():
    et = read_execution_trace(next(iter(trace_files([DATA / "toy_cpu_et.json.gz"]))))
    assert et.schema.startswith("1.1.1")
    assert "aten::linear" in {n.name for n in et.operators}


def test_an_execution_trace_meets_its_profile_by_record_id():
    made = Made()
    made.op("aten::mm", 0, 10, **{"Record function id": 3})
    et = read_execution_trace(TraceFile("et.json", json.dumps({"schema": "1.0.1", "nodes": [FLAT]}).encode()))
    assert link_et(et, made.linked()) == {5: 0}


def test_an_execution_trace_meets_its_profile_by_order():
    made = Made()
    for i, name in enumerate(("aten::a", "aten::b", "aten::c")):
        made.op(name, 10 * i, 5)
    nodes = [{**FLAT, "id": 10 + i, "name": n, "rf_id": 0} for i, n in enumerate(("aten::a", "aten::c"))]
    et = read_execution_trace(TraceFile("et.json", json.dumps({"schema": "1.0.1", "nodes": nodes}).encode()))
    assert link_et(et, made.linked()) == {10: 0, 11: 2}


def test_a_profile_without_shapes_takes_them_from_its_execution_trace(tmp_path):
    made = Made()
    made.step(0, 0, 100)
    made.op("aten::mm", 10, 50, **{"Record function id": 3})
    made.launch(20, 5, "volta_sgemm_128x64_tn", 30, 5)
    made.save(tmp_path)
    node = {**FLAT, "input_shapes": [[8, 4], [4, 16]], "input_types": ["Tensor(float)", "Tensor(float)"]}
    (tmp_path / "et.json").write_text(json.dumps({"schema": "1.0.1", "pid": 7, "nodes": [node]}))
    job = trace_job(load_trace(tmp_path), 0)
    (kernel,) = (k for op in job.job.programs[0].ops for k in op.kernels)
    assert (kernel.dim("m"), kernel.dim("n"), kernel.dim("k")) == (8, 16, 4)


def test_a_predicted_step_exports_and_reads_back(tmp_path):
    timeline = predict_trace(made_run(two_step_training())).timeline
    (path,) = export_chakra(timeline, tmp_path)
    trace = read_chakra(path.read_bytes())
    times = timeline.rank(0)
    kernels = [n for n in trace.nodes if not n.attributes["is_cpu_op"]]
    assert len(kernels) == len(times.end_us)
    assert all(d < n.id for n in trace.nodes for d in (*n.control_deps, *n.data_deps))
    assert kernels[0].duration_us == round(times.device_us[0])


@pytest.mark.data
def test_every_node_of_a_real_step_finds_its_operator_by_rf_id(measured_data):
    traces = measured_data / "traces" / "megatron_tp2_2xV100"
    (profile,) = trace_files([traces / "result" / "0"])
    (et,) = trace_files([traces / "pytorch_et_0.json.gz"])
    assert len(link_et(read_execution_trace(et), link(read_kineto(profile)))) == 1876
