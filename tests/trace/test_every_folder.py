"""Every folder of published traces opens, or says why not."""

from __future__ import annotations

import pytest

from stepsight.errors import InputError
from stepsight.trace.run import load_trace, measured_step_us

SEVERAL = "which are not mixed"
REFUSED = {
    "chakra_et_plus_dlrm": "holds no profiler",
    "critical_path_units": SEVERAL,
    "nanogpt_8xH100": SEVERAL,
    "param_pairs": SEVERAL,
    "resnet50_V100": SEVERAL,
    "torchrec_dlrm_4xV100": SEVERAL,
    "tracelens": SEVERAL,
}
"""Folders that are refused as a whole, and what is stated; the runs inside open one by one."""


@pytest.mark.data
def test_every_folder_opens_or_says_why_not(measured_data):
    for folder in sorted(p for p in (measured_data / "traces").iterdir() if p.is_dir()):
        try:
            run = load_trace(folder)
        except InputError as refused:
            assert REFUSED.get(folder.name, "?") in str(refused), folder.name
            assert refused.fix if hasattr(refused, "fix") else True
            continue
        assert folder.name not in REFUSED, folder.name
        assert measured_step_us(run) > 0, folder.name
        assert all(rank.linked.launches for rank in run.ranks), folder.name
