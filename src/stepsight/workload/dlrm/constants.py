"""Constants of recommender models (`data/constants/dlrm.toml`)."""

from __future__ import annotations

from stepsight.constants import area

METHOD_SPREAD = area("dlrm").number("METHOD_SPREAD")
