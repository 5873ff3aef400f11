"""A calibrated folder of a made-up machine, written once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stepsight.calibrate.folder import build
    from stepsight.calibrate.journal import Journal

    from .synthetic import samples

    folder = tmp_path_factory.mktemp("platform")
    journal = Journal(folder, resume=True)
    for stage, rows in samples().items():
        journal.add(stage, rows)
    build(journal, folder, "synthetic", "cpu", 2)
    return folder
