"""Fixtures that every test may use."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

# Before numpy loads: two test processes with a thread pool each would only wait for each other.
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(pool, "1")

# Some virtual machines report AMX and then refuse its instructions.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Machines are shared and noisy: no test may fail because one was slow.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


WITHOUT_TORCH = importlib.util.find_spec("torch") is None
NO_TORCH = ("No module named 'torch'", "this needs torch, which is not installed")


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Modules that need torch skip where it is not installed."""
    found = yield
    report = found.get_result()  # type: ignore[attr-defined]
    if WITHOUT_TORCH and report.failed and any(words in str(report.longrepr) for words in NO_TORCH):
        report.outcome, report.result = "skipped", []
        report.longrepr = (str(collector.path), 0, "Skipped: torch is not installed")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """The same of tests."""
    found = yield
    report = found.get_result()  # type: ignore[attr-defined]
    if WITHOUT_TORCH and report.failed and any(words in str(report.longrepr) for words in NO_TORCH):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "Skipped: torch is not installed")


@pytest.fixture(scope="session")
def measured_data() -> Path:
    """The folder of measured tables; a test that needs it skips where it is absent."""
    folder = Path(os.environ.get("STEPSIGHT_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the measured tables are not at {folder}")
    return folder


@pytest.fixture(autouse=True)
def _no_stated_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test runners state a terminal's width for their workers; output here goes to a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
