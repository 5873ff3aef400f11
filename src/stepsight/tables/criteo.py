"""Criteo Terabyte and DLRM's random batches: the tables and indices of published measurements."""

from __future__ import annotations

CRITEO_TB_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155,
    4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
"""Rows per categorical feature of Criteo Terabyte, capped at 40 M as MLPerf v0.7 does (MLPerf
training reference, recommendation/dlrm, --max-ind-range=40000000)."""
ORDERED = {"uniform": "ordered"}
"""DLRM draws random batches bag by bag with numpy.unique, which sorts, and ten lookups a bag where the
command line names no number (facebookresearch/dlrm, dlrm_data_pytorch.py and dlrm_s_pytorch.py)."""
CRITEO = {"zipf": 1.05}
"""What stands in for the click logs' own indices."""
