"""Every kind of input that once gave a wrong answer, a hang or a traceback, through the command line.

Each entry is a phrase of the list in docs/limits.md ("What was wrong once"), the command, and what it says.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from stepsight.cli import cli
from stepsight.errors import StepsightError
from tests.trace.making import Made, two_step_training

ROOT = Path(__file__).parents[2]
DLRM, GPT2 = str(ROOT / "examples" / "dlrm.toml"), str(ROOT / "examples" / "gpt2.toml")
ON = ("-p", "4xV100-SXM2")
Make = Callable[[Path], Sequence[str]]


def stepsight(arguments: Sequence[str]) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def refusal(arguments: Sequence[str]) -> str:
    """What a refused command says: an error of ours, or of the command line's own checks."""
    result = stepsight(arguments)
    if isinstance(result.exception, StepsightError):
        return str(result.exception)
    assert isinstance(result.exception, SystemExit) and result.exit_code == 2, repr(result.exception)
    return result.output + result.stderr


def written(name: str, content: bytes | str, *arguments: str) -> Make:
    """A command about a file; ``{file}`` in an argument is the file's path."""

    def make(folder: Path) -> list[str]:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [a.replace("{file}", str(path)).replace("{folder}", str(folder)) for a in arguments]

    return make


def given(*arguments: str) -> Make:
    return lambda folder: arguments


def set_to(*assignments: str, file: str = DLRM) -> Make:
    return given("predict", file, *ON, *(part for a in assignments for part in ("--set", a)))


def indices(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def looked_up(name: str, content: bytes) -> Make:
    """A DLRM whose tables are looked up by an index file."""
    return written(name, content, "predict", DLRM, *ON, "--set", 'tables.0.indices={ file = "{file}" }')


def traced(events: Sequence[dict[str, Any]], world_size: int = 1) -> bytes:
    return json.dumps({
        "schemaVersion": 1, "traceEvents": list(events),
        "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16 * 10**9}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": world_size},
    }).encode()  # fmt: skip


def changed(**fields: Any) -> list[dict[str, Any]]:
    """The events of a good trace with these fields in all of them (``args`` are merged)."""
    events = two_step_training().events
    args = fields.pop("args", {})
    return [{**e, **fields, "args": {**e["args"], **args}} for e in events]


def of_categories(*kept: str) -> list[dict[str, Any]]:
    return [e for e in two_step_training().events if e["cat"] in kept]


def predicted(content: bytes) -> Make:
    return written("t.json", content, "predict", "--trace", "{file}", "--json")


def asked(question: str) -> Make:
    content = traced(two_step_training().events)
    return written("t.json", content, "compare", "--trace", "{file}", "--what-if", question)


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("indices.npy", bytes(1 << 22))
    return file.getvalue()


NCCL = (
    "# nccl-tests all_reduce_perf (algbw, busbw)\n"
    "#  Rank  0 Group  0 Pid 1 on h device 0 [0x0] NVIDIA A100-SXM4-40GB\n"
    "#  Rank  1 Group  0 Pid 1 on h device 1 [0x1] NVIDIA A100-SXM4-40GB\n"
    "1024 256 float sum -1 {time} 0.10 0.10 0 {time} 0.10 0.10 0\n"
)
PARAM = "world_size: 1000000000\n\tCOMMS-RES-all_reduce-float32 1024 256 9.3 9.0 9.1 9.0 9.5 0.1 0.1\n"
TIMES = ("kernel", "--table", "{file}")
TABLES = ("shard", DLRM, *ON, "--tables", "{file}")
IMPORT = ("collective", "-p", "{folder}/mine", "--import", "{file}")
DEEP = "[" * 2000 + "]" * 2000

REFUSED: list[tuple[str, Make, str]] = [
    # wrong answers, given with confidence
    ("an empty plan", written("p.json", '{"ranks": 4, "shards": []}', "shard", DLRM, *ON,
                              "--set", "parallel.ranks=4", "--also", "{file}"), "lives nowhere"),
    ("link.gbps 0", set_to("platform.link.gbps=0"), "link.gbps"),
    ("link.gbps negative", set_to("platform.link.gbps=-5"), "link.gbps"),
    ("host.speed -1", set_to("platform.host.speed=-1"), "host.speed"),
    ("NaN in a platform", set_to("platform.gpu.memory_gbps=nan"), "memory_gbps"),
    ("NaN in a platform's file", written("p.toml", 'gpu = "V100"\n[link]\ngbps = nan\n', "predict", DLRM,
                                         "-p", "{file}"), "gbps"),
    ("NaN in a what-if", asked("link=nan"), "link=nan"),
    ("a negative what-if", asked("link=-3"), "link"),
    ("negative index lengths", looked_up("i.npz", indices(
        indices=np.zeros(2, dtype=np.int64), lengths=np.array([[3, -1]]))), "a bag of -1"),
    # without bound
    ("layers without a cap", set_to("layers=10000000", file=GPT2), "STEPSIGHT_LIMIT_LAYERS"),
    ("counts without a cap", set_to("tables.0.count=1000000000"), "STEPSIGHT_LIMIT_TABLES"),
    ("world_size 10⁹ of a trace", predicted(traced(two_step_training().events, 10**9)), "LIMIT_RANKS"),
    ("world_size 10⁹ of an import", written("o.txt", PARAM, *IMPORT), "LIMIT_RANKS"),
    ("a gzip that unpacks without end", written(
        "t.json.gz", gzip.compress(bytes(1 << 22)), "predict", "--trace", "{file}"), "unpacks to more"),
    ("an npz that unpacks without end", looked_up("i.npz", bomb()), "unpacks to more"),
    ("an index text that unpacks without end", looked_up(
        "i.csv.gz", gzip.compress(b"1,2\n" * (1 << 19))), "unpacks to more"),
    ("a table larger than its limit", written("k.csv", b"gpu,op\n" + b"x" * (1 << 21), *TIMES), "TEXT_BYTES"),
    ("a benchmark's output larger than its limit", written("o.txt", b"#" * (1 << 21), *IMPORT), "TEXT_BYTES"),
    # tracebacks
    ("NaN for an integer", set_to("batch=nan"), "batch"),
    ("inf for an integer", set_to("batch=inf"), "batch"),
    ("5,000 nested brackets", written("w.toml", "x=" + "[" * 5000, "predict", "{file}", *ON), "w.toml"),
    ("5,000 digits", written("w.toml", "x=" + "9" * 5000, "predict", "{file}", *ON), "w.toml"),
    ("tables.0=5", set_to("tables.0=5"), "table"),
    ("platform.link=5", set_to("platform.link=5"), "link"),
    ("a time of 1.2.3", written("all_reduce.txt", NCCL.format(time="1.2.3"), *IMPORT), "1.2.3"),
    ("a CSV that is not UTF-8", written("k.csv", b"\xff\xfe\x00bad", *TIMES), "UTF-8"),
    ("a CSV with only a header", written("k.csv", "gpu,family,dtype,m,n,k\n", *TIMES), "no rows"),
    ("a field over 128 KB", written("k.csv", b"gpu,op,m\n" + b"x" * 200_000 + b",a,b\n", *TIMES), "CSV"),
    ("tables with extra columns", written("t.csv", "rows,dim,pooling\n10,8,1,7,9\n", *TABLES), "line 2"),
    ("null pooling", written("t.json", '[{"num_embeddings": 10, "embedding_dim": 4, "pooling_factor": null}]',
                             *TABLES), "pooling_factor"),
    ("empty indices", looked_up("i.npz", indices(indices=np.zeros(0, dtype=np.int64))), "shape"),
    ("0-d indices", looked_up("i.npz", indices(indices=np.zeros((), dtype=np.int64))), "shape"),
    ("3-d indices", looked_up("i.npz", indices(indices=np.zeros((2, 2, 2), dtype=np.int64))), "shape"),
    ("indices that are not gzip", looked_up("i.csv.gz", b"1,2,3\n"), "i.csv.gz"),
    ("an index file that is empty", looked_up("i.npz", b""), "i.npz"),
    ("2,000-deep JSON tables", written("t.json", DEEP, *TABLES), "t.json"),
    ("a 2,000-deep plan", written("p.json", DEEP, "shard", DLRM, *ON, "--also", "{file}"), "p.json"),
    ("a 2,000-deep config", written("config.json", DEEP, "predict", "{file}", *ON), "config.json"),
    ("a trace with all ts 0", predicted(traced(changed(ts=0, dur=0))), "t.json"),
    ("ranks=nan", asked("ranks=nan"), "ranks=nan"),
    ("drop=.*", asked("drop=.*"), "drop"),
    ("--port 99999 of run", given("run", DLRM, "--port", "99999"), "port"),
    ("--port 99999 of calibrate", given("calibrate", "--out", "x", "--port", "99999"), "port"),
    ("--bytes 0", given("collective", "all_reduce", *ON, "--bytes", "0"), "--bytes 0"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no test unpacks gigabytes."""
    monkeypatch.setenv("STEPSIGHT_LIMIT_EXPANDED_BYTES", str(1 << 20))
    monkeypatch.setenv("STEPSIGHT_LIMIT_TEXT_BYTES", str(1 << 20))


@pytest.mark.parametrize(("make", "said"), [(m, s) for _, m, s in REFUSED], ids=[i for i, _, _ in REFUSED])
def test_it_is_refused_with_the_place(make: Make, said: str, tmp_path: Path) -> None:
    assert said in refusal(make(tmp_path))


def test_an_embedding_model_that_is_a_list_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "platform.toml").write_text('gpu = "V100"\ngpus_per_node = 4\n[host]\nsynchronous = true\n')
    (folder / "embedding.json").write_text("[]")
    assert "embedding.json" in refusal(["predict", DLRM, "-p", str(folder)])


ANSWERED = [
    ("grid 1e30", traced(changed(args={"grid": [1e30, 1, 1]}))),
    ("bytes 'x'", traced(changed(args={"bytes": "x"}))),
    ("only kernels", traced(of_categories("kernel"))),
    ("no runtime events", traced(of_categories("kernel", "cpu_op", "user_annotation"))),
    ("2,000-deep JSON", traced(two_step_training().events)[:-1] + b', "x": ' + DEEP.encode() + b"}"),
]  # fmt: skip


@pytest.mark.parametrize("content", [c for _, c in ANSWERED], ids=[i for i, _ in ANSWERED])
def test_a_damaged_trace_gives_a_time_or_a_reason(content: bytes, tmp_path: Path) -> None:
    arguments = predicted(content)(tmp_path)
    result = stepsight(arguments)
    if result.exception is not None:
        assert "t.json" in refusal(arguments)
        return
    answer = json.loads(result.stdout)
    assert math.isfinite(answer["step_time_us"]) and answer["step_time_us"] > 0


def _measured(made: Made, folder: Path) -> float:
    path = folder / "t.json"
    path.write_bytes(traced(made.events))
    result = stepsight(["predict", "--trace", str(path), "--json"])
    assert result.exit_code == 0, result.exception
    return float(json.loads(result.stdout)["measured_us"])


@pytest.mark.parametrize("moment", [1e300, -1e300, 1e18])
def test_one_moment_far_away_does_not_become_the_measured_time(moment: float, tmp_path: Path) -> None:
    good, odd = two_step_training(), two_step_training()
    last = [e for e in odd.events if e["cat"] == "kernel"][-1]
    odd.events.append({**last, "ts": moment})
    assert _measured(odd, tmp_path) == pytest.approx(_measured(good, tmp_path), rel=0.05)


def test_one_wrong_correlation_does_not_change_the_measured_step(tmp_path: Path) -> None:
    good, odd = two_step_training(), two_step_training()
    kernels = [e for e in odd.events if e["cat"] == "kernel"]
    kernels[-1]["args"]["correlation"] = kernels[0]["args"]["correlation"]
    assert _measured(odd, tmp_path) == pytest.approx(_measured(good, tmp_path), rel=0.1)


def test_an_optimizer_of_billions_of_parameters_is_few_operators() -> None:
    from stepsight.workload.files import load_workload

    sizes = [(768, 12), (24576, 192)]
    ops = [
        len(load_workload(GPT2, [f"hidden={h}", f"heads={n}", f"ffn={4 * h}"]).job().programs[0].ops)
        for h, n in sizes
    ]
    assert ops[1] < 1.5 * ops[0]
