"""A group of ranks on this machine: start them, call functions on all of them, notice deaths."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import platform
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from stepsight.errors import InputError, StepsightError
from stepsight.run.worker import Rank, read_frame, with_huge_pages, write_frame

START_SECONDS = 120.0
"""Importing torch on a busy machine takes seconds; two minutes without an answer is a failure."""


class Ranks:
    """``with Ranks(2) as ranks: ranks.call(function, …)`` gives one result per rank.

    ``prefixes`` are put before each rank's command (``ip netns exec a``); ``address`` is
    where rank 0 listens, as the others see it; ``interface`` is the network device gloo uses.
    """

    def __init__(
        self, ranks: int, device: str = "cpu", *, port: int = 0, pin: bool = True, address: str = "127.0.0.1",
        interface: str = "", prefixes: Sequence[Sequence[str]] = (),
    ) -> None:  # fmt: skip
        check_device(device, ranks)
        if port:
            _check_port(port)
        self.ranks, self.device = ranks, device
        self._wanted_port = port
        self._port = port or _free_port()
        self._pin, self._address, self._interface, self._prefixes = pin, address, interface, prefixes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> Ranks:
        cores = core_sets(self.ranks) if self._pin and self.device == "cpu" else [()] * self.ranks
        try:
            for i in range(self.ranks):
                device = "cpu" if self.device == "cpu" else f"cuda:{i}"
                rank = Rank(i, self.ranks, device, cores[i], self._address, self._port)
                self._start(rank)
            self._gather("ready", START_SECONDS)
        except BaseException:  # an interrupt while ranks start must leave none of them
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def restart(self) -> None:
        """New processes: what earlier calls left in memory, and where, is forgotten."""
        self._end()
        self._port = self._wanted_port or _free_port()
        self.__enter__()

    def call(self, function: Callable[..., Any], *arguments: object, timeout_s: float = 3600.0) -> list[Any]:
        """``function(rank, *arguments)`` on every rank at once; the results by rank."""
        if not self._processes:
            raise StepsightError("the ranks have ended; start a new group")
        for i, process in enumerate(self._processes):
            try:
                write_frame(_pipe(process.stdin), (function, arguments))
            except (BrokenPipeError, OSError):
                raise self._died(i) from None
        return self._gather("result", timeout_s)

    def _start(self, rank: Rank) -> None:
        environment = dict(os.environ)
        if self._interface:
            environment["GLOO_SOCKET_IFNAME"] = self._interface
        elif self.device == "cpu" and self._address == "127.0.0.1":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment |= amx_settings(environment)
        environment["OMP_NUM_THREADS"] = str(max(len(rank.cores), 1))
        environment["GLIBC_TUNABLES"] = with_huge_pages(environment.get("GLIBC_TUNABLES", ""))
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the ranks end)
        prefix = list(self._prefixes[rank.rank]) if self._prefixes else []
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "stepsight.run.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
        )  # fmt: skip
        self._processes.append(process)
        self._logs.append(log)
        write_frame(_pipe(process.stdin), rank)

    def _gather(self, expected: str, timeout_s: float) -> list[Any]:
        """One answer from every rank; the first to fail ends them all and is named."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for i, process in enumerate(self._processes):
                selector.register(_pipe(process.stdout), selectors.EVENT_READ, i)
            while len(answers) < self.ranks:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    late = sorted(set(range(self.ranks)) - set(answers))
                    self._end()
                    raise StepsightError(
                        f"rank {late[0]}: no answer within {timeout_s:.0f} s; all ranks ended"
                    )
                for key, _ in ready:
                    answers[key.data] = self._answer(key.data, expected)
                    selector.unregister(key.fileobj)
        return [answers[i] for i in range(self.ranks)]

    def _answer(self, rank: int, expected: str) -> Any:
        try:
            kind, value = read_frame(_pipe(self._processes[rank].stdout))
        except EOFError:
            raise self._died(rank) from None
        if kind == expected:
            return value
        self._end()
        if kind == "input":
            raise StepsightError(str(value))
        first, _, trace = str(value).partition("\n")
        raise StepsightError(f"rank {rank} failed: {first}\n{trace.rstrip()}")

    def _died(self, rank: int) -> StepsightError:
        code = self._processes[rank].wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        log = self._logs[rank]
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        self._end()
        last = f"; its last words: {lines[-1]}" if lines else ""
        return StepsightError(f"rank {rank} {how}; the other ranks were ended{last}")

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue
        for log in self._logs:
            log.close()
        self._processes, self._logs = [], []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]


def check_device(device: str, ranks: int) -> None:
    """Raise where this machine cannot run this many ranks on such a device."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("torch", "is not installed", "pip install torch")
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device {device}", "no such device", "use cpu or cuda")
    if ranks < 1:
        raise InputError(f"--ranks {ranks}", "there must be at least one rank", "use --ranks 1 or more")
    if device == "cuda":
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found == 0:
            raise InputError("--device cuda", "no CUDA device is visible here", "use --device cpu")
        if found < ranks:
            raise InputError(
                f"--ranks {ranks}", f"only {found} CUDA devices are visible", f"use at most {found}"
            )


def core_sets(ranks: int) -> list[tuple[int, ...]]:
    """The cores of each rank: equal shares of those this process may use; shared where too few."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not cores:
        return [()] * ranks
    share = max(len(cores) // ranks, 1)
    return [tuple(cores[(i * share + j) % len(cores)] for j in range(share)) for i in range(ranks)]


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"--port {port}", f"cannot be used ({error.strerror})",
                             "name a free port, or leave it out") from None  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("a rank was started without pipes")
    return pipe


def writable_folder(path: Path) -> Path:
    """A folder that can be written, made if needed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be made ({error.strerror})", "name a folder you may write"
        ) from None
    return path


_ONEDNN, _WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""oneDNN's own switch, and the instructions it may use at most where AMX does not work."""
AMX_NOTE = (
    "this machine reports AMX but hides its tiles: bf16 products use AVX-512 "
    f"({_ONEDNN}={_WITHOUT_AMX}; set it yourself to choose)"
)
_TILE_LEAF = 0x1D
"""Intel's CPUID leaf of tile palettes; the first figure is the highest palette, 0 for none."""
_CPUID = bytes.fromhex("53 89f8 89f1 0fa2 5b c3")
"""push rbx; mov eax, edi; mov ecx, esi; cpuid; pop rbx; ret"""


def amx_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What a process that computes with torch needs in its environment; the user's own choice stays."""
    return {} if _ONEDNN in environment or amx_usable() else {_ONEDNN: _WITHOUT_AMX}


@cache
def amx_usable() -> bool:
    """Whether AMX is not reported, or reported and described.

    Some virtual machines list AMX among their processor's features but hide the CPUID leaf that describes
    tiles. oneDNN, which computes torch's bf16 products, believes the list, configures no tiles, and dies of
    an illegal instruction.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return True
    try:
        return "amx_tile" not in Path("/proc/cpuinfo").read_text() or _highest_palette() > 0
    except OSError:  # no such file, or memory may not be executed here
        return True


def _highest_palette() -> int:
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_CPUID)
        start = ctypes.c_char.from_buffer(page)
        cpuid = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)(ctypes.addressof(start))
        highest = 0 if cpuid(0, 0) < _TILE_LEAF else cpuid(_TILE_LEAF, 0)
        del start, cpuid
    return highest
