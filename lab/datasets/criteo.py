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
FREQUENT_15_ROWS = (
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4,
    968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
)  # fmt: skip
"""Values seen at least 15 times: NVIDIA's small model (DeepLearningExamples, DLRM for PyTorch; 16.7 GB)."""
FREQUENT_3_ROWS = (
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209, 11267, 128,
    4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)  # fmt: skip
"""NVIDIA's large model, and TorchRec's Criteo example (torchrec_dlrm/README: 91.1 GB in fp32)."""
FREQUENT_2_ROWS = tuple(rows if rows < 1_000_000 else round(1.57 * rows) for rows in FREQUENT_3_ROWS)
"""NVIDIA's xlarge model. Its table sizes are not published: those above a million rows of the large
one, scaled to the 142 GB that are."""
MULTI_HOT_ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155,
    4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
"""Rows per feature of MLPerf's multi-hot model (MLPerf training reference, recommendation_v2/torchrec_dlrm,
--num_embeddings_per_feature)."""
MULTI_HOT_SIZES = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Lookups a feature of the multi-hot Criteo set (MLPerf training reference, recommendation_v2/torchrec_dlrm,
--multi_hot_sizes), over the tables of `CRITEO_TB_ROWS`."""
