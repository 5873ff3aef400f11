"""Commands that are interrupted, ended, killed or run out of disk at a random moment.

What they write must then be the old file or the whole new one, what they were doing can be taken up again,
and no process is left. `scripts/fuzz --kills 40` tries many; `test_interruptions.py` a handful.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepsight.calibrate.journal import Journal as Samples
from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.tuning.trial import Journal as Trials

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OLD = b"the old file\n"
HOW = ("SIGINT", "SIGTERM", "SIGKILL", "full disk")
LONGEST_S, GONE_S, IMPORTS_S = 900.0, 30.0, 5.0
SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(32, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Command:
    """``arguments`` of stepsight in a folder; ``files`` are written whole; ``check`` looks at the rest.

    ``journal`` is the file of lines that it appends to: half of the time it is disturbed once that has some.
    ``needs`` is the package without which it does not run.
    """

    name: str
    arguments: Callable[[Path], Sequence[str]]
    files: tuple[str, ...] = ()
    check: Callable[[Path], None] = lambda folder: None
    seconds: float = 5.0
    needs: str = ""
    again: bool = True
    journal: str = ""
    gone_s: float = GONE_S
    """Ray's own processes notice late that they were left alone."""


def _trials(folder: Path) -> None:
    Trials(folder / "trials.jsonl", {})


def _calibration(folder: Path) -> None:
    """The samples can be read, and the folder is a platform or none, never half of one."""
    if (folder / "here").is_dir():
        Samples(folder / "here", resume=True)
        try:
            platform = load_platform(folder / "here")
        except InputError:
            return
        assert platform.kernels and platform.overheads and platform.rehearsal_spread


def _tune(folder: Path) -> list[str]:
    model, kept, rows = EXAMPLES / "llama3_8b_fsdp.toml", folder / "trials.jsonl", folder / "rows.csv"
    return ["tune", str(model), "-p", "8xH100-SXM", "--over", "zero,micro_batch", "--workers", "2",
            "--resume", str(kept), "--csv", str(rows)]  # fmt: skip


def _tune_on_ray(folder: Path) -> list[str]:
    kept, rows = folder / "trials.jsonl", folder / "rows.csv"
    return ["tune", str(EXAMPLES / "llama3_8b_fsdp.toml"), "-p", "8xH100-SXM", "--over", "zero,micro_batch",
            "--ray", "local", "--resume", str(kept), "--csv", str(rows)]  # fmt: skip


def _sweep(folder: Path) -> list[str]:
    kept, rows = folder / "trials.jsonl", folder / "rows.csv"
    return ["sweep", str(EXAMPLES / "dlrm.toml"), "--over", "batch=512,1024,2048,4096", "--over",
            "platform=4xV100-SXM2,4xA100-SXM4-40G", "--resume", str(kept), "--csv", str(rows)]  # fmt: skip


def _shard(folder: Path) -> list[str]:
    plan = folder / "plan.json"
    return ["shard", str(EXAMPLES / "dlrm.toml"), "-p", "4xV100-SXM2", "--torchrec", str(plan)]


def _capture(folder: Path) -> list[str]:
    (folder / "train.py").write_text(SCRIPT)
    return ["capture", str(folder / "train.py"), "-p", "1xA100-SXM4-40G", "--save", str(folder / "step.json")]


def _small_run(folder: Path) -> list[str]:
    small = ["batch=64", "tables.0.rows=1000", "parallel.ranks=2"]
    return ["run", str(EXAMPLES / "dlrm.toml"), "--steps", "5", "--profile", str(folder / "profile"),
            *(part for s in small for part in ("--set", s))]  # fmt: skip


COMMANDS = (
    Command("predict", lambda f: ["predict", str(EXAMPLES / "dlrm.toml"), "-p", "8xA100-SXM4-40G",
                                  "--html", str(f / "page.html"), "--timeline", str(f / "timeline.json")],
            ("page.html", "timeline.json"), seconds=4.0, again=False),
    Command("tune", _tune, ("rows.csv",), _trials, seconds=6.0, journal="trials.jsonl"),
    Command("tune --ray", _tune_on_ray, ("rows.csv",), _trials, seconds=25.0, needs="ray",
            journal="trials.jsonl", gone_s=180.0),
    Command("sweep", _sweep, ("rows.csv",), _trials, seconds=6.0, journal="trials.jsonl"),
    Command("shard", _shard, ("plan.json",), seconds=8.0),
    Command("capture", _capture, ("step.json",), seconds=12.0, needs="torch"),
    Command("run", _small_run, seconds=12.0, needs="torch"),
    Command("calibrate", lambda f: ["calibrate", "--ranks", "2", "--budget", "30s", "--out", str(f / "here"),
                                    *(["--resume"] if (f / "here" / "samples.jsonl").exists() else [])],
            check=_calibration, seconds=90.0, needs="torch", journal="here/samples.jsonl"),
)  # fmt: skip


def interrupt(command: Command, seed: int, folder: Path) -> str:
    """Run it, disturb it, look at what it left. Gives how it was disturbed and how it ended."""
    rng = random.Random(f"{command.name} {seed}")
    how, after_s = HOW[seed % len(HOW)], rng.uniform(0.0, command.seconds)
    old = rng.random() < 0.5
    lines = rng.randint(1, 12) if command.journal and rng.random() < 0.5 else 0
    for name in command.files if old else ():
        (folder / name).write_bytes(OLD)
    limit = rng.choice((0, 4096, 65536, 10**6)) if how == "full disk" else None
    ended, said = _disturbed(command, folder, how, after_s, limit, lines)
    for name in command.files:
        _whole_or_old(folder / name, old)
    if how != "SIGKILL":
        left = [p.name for p in folder.rglob("*.part")] + [p.name for p in folder.rglob(".draft")]
        assert not left, f"{command.name} left {left} after {how}"
    if how != "SIGINT" or after_s > IMPORTS_S or lines:  # Python itself prints one while it still imports
        assert "Traceback" not in said, f"{command.name}, {how} after {after_s:.2f} s: {said[-2000:]}"
    command.check(folder)
    if command.again:
        code, said = _run(command, folder, None)
        assert code == 0, f"{command.name} does not go on after {how}: {said[-2000:]}"
    return f"{how}: exit code {ended}"


def _whole_or_old(path: Path, old: bool) -> None:
    if not path.exists():
        assert not old, f"{path.name} is gone"
        return
    content = path.read_bytes()
    if old and content == OLD:
        return
    if path.suffix == ".json":
        json.loads(content)
    elif path.suffix == ".html":
        assert content.rstrip().endswith(b"</html>"), f"{path.name} is cut"
    else:
        assert content.endswith(b"\n"), f"{path.name} is cut"
        assert len(content) > len(OLD)


def _start(arguments: Sequence[str], limit: int | None) -> subprocess.Popen[bytes]:
    def limited() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells let background processes ignore it
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "stepsight", *arguments]
    return subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, start_new_session=True,
        preexec_fn=limited,
    )  # fmt: skip


def _run(command: Command, folder: Path, limit: int | None) -> tuple[int, str]:
    process = _start(command.arguments(folder), limit)
    said = process.communicate(timeout=LONGEST_S)[1].decode(errors="replace")
    _nobody_left(process.pid, command.gone_s)
    return process.returncode, said


def _disturbed(
    command: Command, folder: Path, how: str, after_s: float, limit: int | None, lines: int
) -> tuple[int, str]:
    """Run and disturb it after a while, or once its journal has this many ``lines``."""
    if limit is not None:
        return _run(command, folder, limit)
    process = _start(command.arguments(folder), None)
    journal, deadline = folder / command.journal, time.monotonic() + LONGEST_S
    while lines and process.poll() is None and time.monotonic() < deadline:
        if journal.is_file() and journal.read_bytes().count(b"\n") >= lines:
            after_s = 0.0
            break
        time.sleep(0.02)
    try:
        said = process.communicate(timeout=after_s)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(getattr(signal, how))
        said = process.communicate(timeout=LONGEST_S)[1]
    _nobody_left(process.pid, command.gone_s)
    return process.returncode, said.decode(errors="replace")


def _nobody_left(session: int, gone_s: float) -> None:
    """Every process of the session is gone soon after the command."""
    deadline = time.monotonic() + gone_s
    while left := _members(session):
        assert time.monotonic() < deadline, f"processes left: {left}"
        time.sleep(0.1)


def _members(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found
