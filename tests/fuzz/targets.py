"""What is fuzzed: a good input, how it is damaged, and the call that must survive it."""
# ruff: noqa: E501 - outputs of benchmarks are as wide as they are

from __future__ import annotations

import gzip
import io
import json
import math
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.calibrate.draws import VALIDATION, random_dlrm, random_transformer
from stepsight.calibrate.folder import build
from stepsight.calibrate.journal import Journal
from stepsight.collectives.benchmark_files import read_nccl_tests, read_param_comms, read_timings_csv
from stepsight.errors import StepsightError
from stepsight.platform.load import load_platform
from stepsight.prediction.kernel_times import read_table, time_table
from stepsight.prediction.predict import predict
from stepsight.prediction.traced.predict import predict_trace
from stepsight.tables.files import read_tables
from stepsight.tables.indices.index_files import batch_stats, open_index_file
from stepsight.tables.plan import Plan
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table
from stepsight.tables.torchrec_plan import read_torchrec, torchrec_document
from stepsight.trace.run import load_trace
from stepsight.tuning.trial import Journal as Trials
from stepsight.tuning.trial import Row, Trial
from stepsight.workload.files import load_workload, parse_workload
from tests.calibrate.synthetic import samples
from tests.fuzz.interruptions import SCRIPT
from tests.fuzz.mutate import (
    ODD_NUMBERS,
    mutated_bytes,
    mutated_execution_trace,
    mutated_json,
    mutated_text,
    mutated_trace,
)
from tests.tables.indices.test_index_files import write_torch_zip
from tests.trace.making import two_step_training

EXAMPLES = Path(__file__).parents[2] / "examples"
Damage = Callable[[random.Random], bytes]
SCRIPT_S, SCRIPT_CPU_S = 600.0, 60
"""Seconds on the wall, of which a busy machine takes many, and of processor time in each process."""


@dataclass(frozen=True)
class Target:
    """``damage`` makes the content of a file called ``name``; ``ask`` reads it and returns a number."""

    name: str
    damage: Damage
    ask: Callable[[Path], float]


def _example(name: str) -> Damage:
    text = (EXAMPLES / name).read_text()
    return lambda rng: mutated_text(text, rng)


def _predicted(path: Path) -> float:
    workload = load_workload(path)
    return predict(workload, load_platform("8xA100-SXM4-40G")).step_time_us


def _on_many(path: Path) -> float:
    return predict(path, "8x8xH100-SXM-80G").step_time_us


def _assigned(path: Path) -> float:
    key, _, value = path.read_text().partition("=")
    workload = load_workload(EXAMPLES / "dlrm.toml", [f"{key}={value}"])
    return predict(workload, load_platform("4xV100-SXM2")).step_time_us


def _assignments(rng: random.Random) -> bytes:
    keys = ("batch", "tables.0.rows", "tables.0", "tables.rows", "tables.0.pooling", "tables.0.indices",
            "dense.bottom", "dense.features", "parallel.ranks", "parallel.sharding", "training.optimizer",
            "a.b.c", "tables.7.rows", "kind", "parallel.bucket_mb")  # fmt: skip
    values = (*ODD_NUMBERS, "[]", "{}", '"x"', "4", "3.5", "[1, 2]", "{ zipf = 1.2 }", "true")
    return f"{rng.choice(keys)}={rng.choice(values)}".encode()


PLATFORM = """name = "mine"
gpus_per_node = 4
nodes = 1
[gpu]
name = "G"
vendor = "nvidia"
architecture = "ampere"
sms = 108
clock_mhz = 1410.0
memory_gb = 40.0
memory_gbps = 1555.0
l2_mb = 40.0
l2_gbps = 4000.0
pcie_gbps = 25.0
[gpu.peak_tflops]
fp32 = 19.5
fp16 = 312.0
[link]
kind = "nvswitch"
gbps = 300.0
latency_us = 3.0
[host]
name = "A100"
speed = 1.0
"""


def _on_platform(path: Path) -> float:
    return predict(
        load_workload(EXAMPLES / "dlrm.toml", ["parallel.ranks=2"]), load_platform(path)
    ).step_time_us


_FIGURE = re.compile(rb'(?<![\w."])-?\d+\.?\d*(?:[eE][-+]?\d+)?(?![\w"])')
_ODD_FIGURES = (b"Infinity", b"-Infinity", b"NaN", b"-1e200", b"1e200", b"100000.0", b"-1", b"0", b"inf",
                b"nan", b"1e-200", b'"x"', b"null", b"true")  # fmt: skip


@lru_cache(maxsize=1)
def _calibrated() -> dict[str, bytes]:
    """The files of a calibrated folder of a made-up machine."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        journal = Journal(folder, resume=True)
        for stage, rows in samples(kernels=120, tables=40).items():
            journal.add(stage, rows)
        build(journal, folder, "synthetic", "cpu", 2)
        return {
            str(f.relative_to(folder)): f.read_bytes()
            for f in folder.rglob("*")
            if f.is_file() and f.name != "samples.jsonl"
        }


def _damaged_figure(rng: random.Random) -> bytes:
    """Which file of a calibrated folder, and its content with one figure damaged."""
    name = rng.choice(sorted(_calibrated()))
    content = _calibrated()[name]
    figures = list(_FIGURE.finditer(content))
    if figures:
        figure = rng.choice(figures)
        content = content[: figure.start()] + rng.choice(_ODD_FIGURES) + content[figure.end() :]
    return name.encode() + b"\n" + content


def _on_calibrated(path: Path) -> float:
    name, _, content = path.read_bytes().partition(b"\n")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for file, whole in _calibrated().items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content if file == name.decode() else whole)
        platform = load_platform(folder)
        documents = random_dlrm(2, 3, VALIDATION), random_transformer(2, 3, VALIDATION, "bert")
        answers = [predict(parse_workload(dict(d), d["name"]), platform) for d in documents]
    assert all(0 < a.low_us <= a.step_time_us <= a.high_us < math.inf for a in answers), answers
    assert all(a.step_time_us < MOST_STEP_US for a in answers), f"a step of {answers[0].step_time_us:g} µs"
    return sum(a.step_time_us for a in answers)


MOST_STEP_US = 1e9
"""Small steps on a small machine: no damaged figure may make one of them take a quarter of an hour."""


def _trace(path: Path) -> float:
    prediction = predict_trace(load_trace(path))
    return prediction.step_time_us + (prediction.measured_us or 0.0)


def _profile() -> dict[str, Any]:
    made = two_step_training()
    return {
        "schemaVersion": 1, "traceEvents": made.events,
        "deviceProperties": [{"id": 0, "name": made.device, "numSms": 80, "computeMajor": 7}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
    }  # fmt: skip


def _every_basis(path: Path) -> float:
    """Anchored, by models and replayed: all finite and above zero, GPUs busy for no longer than the step."""
    total = 0.0
    for asked in ({}, {"models_only": True}, {"replay": True}):
        prediction = predict_trace(load_trace(path), **asked)
        assert 0 <= prediction.gpu_active_us <= 1.0001 * prediction.step_time_us, (
            f"busy {prediction.gpu_active_us}"
        )
        assert 0 < prediction.low_us <= prediction.step_time_us <= prediction.high_us < math.inf
        total += prediction.step_time_us + (prediction.measured_us or 0.0)
    return total


def _with_execution_trace(path: Path) -> float:
    """The profile of a run with a damaged execution trace of it in the same folder."""
    folder = path.parent / "with_et"
    folder.mkdir(exist_ok=True)
    profile = _profile()
    for number, event in enumerate(e for e in profile["traceEvents"] if e["cat"] == "cpu_op"):
        event["args"] = {"Record function id": number + 1}
    (folder / "profile.json").write_text(json.dumps(profile))
    (folder / "et.json").write_bytes(path.read_bytes())
    return _every_basis(folder)


EXECUTION_TRACE = {
    "schema": "1.0.1", "pid": 7, "time": "2023-01-01 00:00:00", "start_ts": 1000, "finish_ts": 3000,
    "nodes": [
        {"name": name, "id": 10 + i, "rf_id": i + 1, "parent": 1, "fw_parent": 0, "seq_id": i, "scope": 0,
         "tid": 1, "fw_tid": 0, "op_schema": "", "inputs": [[1, 2, 0, 64, 4, "cpu"]] * len(shapes),
         "input_shapes": shapes, "input_types": ["Tensor(float)"] * len(shapes), "outputs": [],
         "output_shapes": [], "output_types": []}
        for i, (name, shapes) in enumerate(
            [("aten::addmm", [[64], [256, 128], [128, 64]]), ("aten::relu", [[256, 64]]), ("MmBackward0", [])] * 3
        )
    ],
}  # fmt: skip


CHAKRA = b"\x0a\x0b1.1.0-chakra" + b"\x1a\x20aten::addmm\x00\x01\x02" * 40
"""Bytes of a Chakra file, which is named and not read."""


def _with_chakra(path: Path) -> float:
    """The profile of a run with a damaged Chakra file of it in the same folder: it changes nothing."""
    folder = path.parent / "with_chakra"
    folder.mkdir(exist_ok=True)
    (folder / "profile.json").write_text(json.dumps(_profile()))
    alone = predict_trace(load_trace(folder / "profile.json")).step_time_us
    (folder / "run.0.et").write_bytes(path.read_bytes())
    assert predict_trace(load_trace(folder)).step_time_us == alone
    return alone


@lru_cache(maxsize=1)
def _bomb() -> bytes:
    return gzip.compress(b" " * (1 << 24), mtime=0)


def _packed(rng: random.Random) -> bytes:
    """A compressed profile: damaged, cut, with a bomb after it, or a bomb itself."""
    whole = gzip.compress(json.dumps(_profile()).encode(), mtime=0)
    cut = whole[: rng.randrange(len(whole))]
    return rng.choice((mutated_bytes(whole, rng), cut, whole + _bomb(), _bomb() * 4))


NCCL = """# nThread 1 nGpus 2 minBytes 8 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  100 on   host device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  100 on   host device  1 [0x0f] NVIDIA A100-SXM4-40GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    10.24    0.10    0.10      0    10.24    0.10    0.10      0
        4096          1024     float     sum      -1    10.24    0.40    0.40      0    10.24    0.40    0.40      0
# Avg bus bandwidth    : 0.25
"""
PARAM = """world_size: 2
\tCOMMS-RES-all_reduce-float32   1024   256   10.3   10.0   10.1   10.0   10.5   0.100   0.100
\tCOMMS-RES-all_reduce-float32   4096   1024   11.3   11.0   11.1   11.0   11.5   0.400   0.400
"""
TIMINGS = "kind,ranks,nodes,bytes,time_us\nall_reduce,2,1,1024,10.0\nall_reduce,2,1,4096,12.0\n"
KERNELS = "gpu,family,dtype,m,n,k\nA100-SXM4-40G,gemm,fp32,128,256,512\nV100-SXM2-16G,gemm,fp16,64,64,64\n"
TABLES = "name,rows,dim,pooling,zipf,dtype,features\na,1000,64,5,1.1,fp32,1\nb,50,16,1,,fp16,2\n"
CONFIGS = [{"name": "t0", "num_embeddings": 100, "embedding_dim": 16, "feature_names": ["f"],
            "data_type": "FP32", "pooling_factor": 2.0},
           {"name": "t1", "num_embeddings": 9, "embedding_dim": 8, "feature_names": ["g", "h"]}]  # fmt: skip
PLAN_TABLES = (Table("a", 100, 16, 2.0), Table("b", 50, 32, 1.0), Table("c", 10, 8, 1.0))


def _plan() -> Plan:
    return SHARDERS["round_robin"](PLAN_TABLES, 2)


HF_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
STEP = json.loads((Path(__file__).parent / "data" / "step.json").read_text())


def _on_one_gpu(path: Path) -> float:
    return predict(path, "1xA100-SXM4-80G").step_time_us


def _indices(rng: random.Random) -> bytes:
    file = io.BytesIO()
    save = rng.choice((np.savez, np.savez_compressed))
    lengths = np.full((2, 8), 2)
    if rng.random() < 0.4:
        lengths[rng.randrange(2), rng.randrange(8)] = rng.choice((-5, 0, 10**12))
    save(file, indices=np.arange(32) % 7, lengths=lengths)
    return mutated_bytes(file.getvalue(), rng) if rng.random() < 0.7 else file.getvalue()


def _torch_indices(rng: random.Random) -> bytes:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "x.pt"
        lengths = np.full((2, 8), 2)
        if rng.random() < 0.4:
            lengths[rng.randrange(2), rng.randrange(8)] = rng.choice((-5, 0, 10**12))
        write_torch_zip(path, np.arange(32) % 7, np.arange(17) * 2, lengths)
        content = path.read_bytes()
    return mutated_bytes(content, rng) if rng.random() < 0.9 else content


def _index_stats(path: Path) -> float:
    open_index_file.cache_clear()
    return float(batch_stats(str(path), 0, 100, 16.0).mean_reuse)


TRIALS = tuple(Trial({"batch": batch}, "8xH100-SXM-80G") for batch in (4, 8, 16))


@lru_cache(maxsize=1)
def _trials() -> str:
    """What `tune --resume` keeps."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "trials.jsonl"
        journal = Trials(path, {"kind": "dlrm"})
        for trial in TRIALS:
            journal.add(trial, Row(trial.settings, trial.platform, step_time_us=10.0, shares={"gemm": 0.5}))
        return path.read_text()


def _kept_trials(path: Path) -> float:
    """Damaged lines are refused or dropped: a row that is left is the row that was written."""
    journal = Trials(path, {"kind": "dlrm"})
    rows = [row for trial in TRIALS if (row := journal.get(trial)) is not None]
    assert all(row.step_time_us == 10.0 and row.shares == {"gemm": 0.5} for row in rows), rows
    return 1.0 + len(rows)


@lru_cache(maxsize=1)
def _samples() -> str:
    """What `calibrate --resume` keeps."""
    with tempfile.TemporaryDirectory() as made:
        journal = Journal(Path(made), resume=True)
        for stage, rows in samples(kernels=60, tables=20).items():
            journal.add(stage, rows)
        return journal.path.read_text()


def _damaged_lines(text: str, rng: random.Random) -> bytes:
    """Some lines as JSON with odd values, or the text as such damaged."""
    if rng.random() < 0.5:
        return mutated_text(text, rng)
    lines = text.encode().splitlines()
    for at in rng.sample(range(len(lines)), rng.randint(1, 5)):
        lines[at] = mutated_json(json.loads(lines[at]), rng)
    return b"\n".join(lines) + b"\n"


def _built(path: Path) -> float:
    """A calibration that goes on from these samples: its platform times a step, or it says what is wrong."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "samples.jsonl").write_bytes(path.read_bytes())
        build(Journal(folder, resume=True), folder, "synthetic", "cpu", 2)
        document = random_dlrm(2, 3, VALIDATION)
        return predict(parse_workload(dict(document), document["name"]), load_platform(folder)).step_time_us


OUTPUTS = ("RUN >&-", "RUN > /dev/full", "RUN | head -c {n}", "RUN 2>&-", "RUN < /dev/null | true",
           "COLUMNS={n} RUN", "ulimit -f 0; RUN > out.txt")  # fmt: skip
ASKED = (["predict", "examples/dlrm.toml", "-p", "2xV100-SXM2"], ["predict", "gpt2", "-p", "a100", "--json"],
         ["kernel", "gemm", "--gpu", "A100-SXM4-40G", "m=64", "n=64", "k=64"], ["platforms"], ["models"],
         ["predict", "nothing.toml"], ["--version"], ["--help"])  # fmt: skip


def _output(rng: random.Random) -> bytes:
    """A command, and an output that is closed, full, narrow or read in part."""
    line = rng.choice(OUTPUTS).format(n=rng.choice((0, 1, 20, 300, 10**4)))
    return json.dumps([line, rng.choice(ASKED)]).encode()


def _written(path: Path) -> float:
    line, arguments = json.loads(path.read_bytes())
    command = shlex.join([sys.executable, "-m", "stepsight", *arguments])
    done = subprocess.run(
        ["bash", "-c", "set -o pipefail; cd \"$1\"; " + line.replace("RUN", command).replace("out.txt", '"$2"'),
         "bash", str(EXAMPLES.parent), str(path.parent / "out.txt")],
        capture_output=True, check=False, timeout=SCRIPT_S,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")},
    )  # fmt: skip
    said = done.stderr.decode(errors="replace")
    assert done.returncode in (0, 2) and "Traceback" not in said, f"{done.returncode}: {line}: {said[-2000:]}"
    if done.returncode == 2:
        raise StepsightError(said[-200:])
    return 1.0


def _text(good: str) -> Damage:
    return lambda rng: mutated_text(good, rng)


def _json(good: object) -> Damage:
    return lambda rng: mutated_json(good, rng)


def _kernel_times(path: Path) -> float:
    return float(np.nansum(time_table(read_table(path), str(path)).time_us))


def _sum_us(timings: object) -> float:
    return float(sum(t.time_us for t in timings))  # type: ignore[attr-defined]


TARGETS = (
    *(Target(name, _example(name), _predicted) for name in
      ("dlrm.toml", "gpt2.toml", "llama.toml", "megatron.toml", "bert.toml")),
    Target("set.txt", _assignments, _assigned),
    Target("platform.toml", _text(PLATFORM), _on_platform),
    Target("calibrated.txt", _damaged_figure, _on_calibrated),
    Target("trace.json", lambda rng: mutated_json(_profile(), rng), _trace),
    Target("profile.json", lambda rng: mutated_trace(_profile(), rng), _every_basis),
    Target("execution_trace.json", _json(EXECUTION_TRACE), _with_execution_trace),
    Target("nodes.json", lambda rng: mutated_execution_trace(EXECUTION_TRACE, rng), _with_execution_trace),
    Target("chakra.et", lambda rng: mutated_bytes(CHAKRA, rng), _with_chakra),
    Target("packed.json.gz", _packed, _every_basis),
    Target("all_reduce.txt", _text(NCCL), lambda p: _sum_us(read_nccl_tests(p).timings)),
    Target("param.txt", _text(PARAM), lambda p: _sum_us(read_param_comms(p).timings)),
    Target("timings.csv", _text(TIMINGS), lambda p: _sum_us(read_timings_csv(p)) + 1.0),
    Target("kernels.csv", _text(KERNELS), _kernel_times),
    Target("tables.csv", _text(TABLES), lambda p: float(len(read_tables(p))) + 1.0),
    Target("tables.json", _json(CONFIGS), lambda p: float(len(read_tables(p))) + 1.0),
    Target("plan.json", lambda rng: mutated_json(torchrec_document(_plan()), rng),
           lambda p: float(len(read_torchrec(p, PLAN_TABLES, 2).shards)) + 1.0),
    Target("indices.npz", _indices, _index_stats),
    Target("indices.pt", _torch_indices, _index_stats),
    Target("trials.jsonl", lambda rng: mutated_text(_trials(), rng), _kept_trials),
    Target("samples.jsonl", lambda rng: _damaged_lines(_samples(), rng), _built),
    Target("output.json", _output, _written),
    Target("config.json", _json(HF_CONFIG), _on_one_gpu),
    Target("step.json", _json(STEP), _on_one_gpu),
    Target("llama3_8b_fsdp.toml", _example("llama3_8b_fsdp.toml"), _predicted),
    Target("llama3_70b_3d.toml", _example("llama3_70b_3d.toml"), _on_many),
)  # fmt: skip


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SCRIPT_CPU_S, SCRIPT_CPU_S))


def _captured(path: Path) -> float:
    """A damaged script, captured: it may fail by itself, stepsight may not."""
    line = [sys.executable, "-m", "stepsight", "capture", str(path), "-p", "1xA100-SXM4-40G", "--json"]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=SCRIPT_S, cwd=path.parent, check=False,
        preexec_fn=_limited,
    )  # fmt: skip
    if done.returncode == 0:
        return float(json.loads(done.stdout)["step_time_us"])
    last = [line for line in done.stderr.splitlines() if line.startswith('  File "')][-1:]
    if done.returncode < 0 or (last and "/stepsight/" in last[0]):
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    raise StepsightError(done.stderr[-200:])


SCRIPTS = (Target("train.py", _text(SCRIPT), _captured),)
"""Each case starts torch: `scripts/fuzz` tries them, the tests do not."""


def outcome(target: Target, seed: int, folder: Path) -> str:
    """``answer`` or ``refused``; anything else is raised."""
    content = target.damage(random.Random(f"{target.name} {seed}"))
    path = folder / target.name
    path.write_bytes(content)
    try:
        number = target.ask(path)
    except StepsightError:
        return "refused"
    if not (math.isfinite(number) and number > 0):
        raise AssertionError(f"{target.name}, seed {seed}: answered {number}")
    return "answer"
