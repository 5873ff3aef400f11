"""Random workloads, scaled to a small machine: what calibration rehearses on and validation scores on.

Seeded. Calibration and validation draw from the same ranges with different seeds, so no
validated configuration took part in a calibration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CALIBRATION, VALIDATION = 1, 2
"""First entry of every seed: the two never share a draw."""

# METHOD §7 scaled to ranks of one or two CPU cores: dims, batches, tables per GPU and MLP widths
# divided by two to eight, so that a step takes tens of milliseconds as it does on a GPU.
DIMS = (32, 64, 128)
BATCHES_PER_RANK = (128, 256, 512, 1024)
TABLES_PER_RANK = (3, 8)
WIDTHS = (128, 256, 512)
FEATURES = (128, 256, 512)
MOST_TABLE_BYTES = 64 << 20
HEAVY_POOLING = 20.0
SKEW = (0.0, 1.25)
SKEWS = (0.0, 0.6, 0.9, 1.1, 1.3)

FAMILIES = ("bert", "gpt2", "xlnet")
LAYERS = (2, 4)
HIDDEN = (128, 192, 256, 384)
SEQUENCES = (32, 64, 128)
TOKENS_PER_RANK = (64, 1024)
VOCABULARIES = (2000, 5000, 10000)

Document = dict[str, Any]


def random_dlrm(ranks: int, seed: int, role: int = CALIBRATION) -> Document:
    """A DLRM as its TOML file would read: every other one has only heavy tables (mean pooling ≥ 20)."""
    rng = np.random.default_rng([role, 1, ranks, seed])
    heavy = seed % 2 == 0
    dot = bool(rng.random() < 0.5)
    width, dim = int(rng.choice(WIDTHS)), int(rng.choice(DIMS))
    count = int(rng.integers(TABLES_PER_RANK[0] * ranks, TABLES_PER_RANK[1] * ranks + 1))
    tables = [_table(rng, heavy, dim if dot else int(rng.choice(DIMS))) for _ in range(count)]
    return {
        "kind": "dlrm",
        "name": f"dlrm-{'heavy' if heavy else 'mixed'}-{seed}",
        "batch": int(rng.choice(BATCHES_PER_RANK)) * ranks,
        "dense": {
            "features": int(rng.choice(FEATURES)),
            "bottom": [width, 2 * width, width // 2, dim],
            "top": [2 * width, width, width // 2, 1],
            "interaction": "dot" if dot else "cat",
        },
        "tables": tables,
        "training": {"precision": "fp32", "optimizer": "sgd", "loss": "bce"},
        "parallel": {"ranks": ranks},
    }


def random_torchrec(ranks: int, seed: int, role: int = CALIBRATION) -> Document:
    """The same models as TorchRec trains them: one dim, row-wise adagrad on tables, adagrad on the rest."""
    document = random_dlrm(ranks, seed, role)
    dim = document["dense"]["bottom"][-1]
    dense = {**document["dense"], "interaction": "dot" if seed % 4 else "dcnv2"}
    if dense["interaction"] == "dcnv2":
        dense |= {"cross_layers": 2, "cross_rank": 64}
    return {
        **document,
        "name": document["name"].replace("dlrm", "torchrec"),
        "dense": dense,
        "tables": [{**table, "dim": dim, "rows": min(table["rows"], MOST_TABLE_BYTES // (4 * dim))}
                   for table in document["tables"]],
        "training": {
            "optimizer": "adagrad", "sparse_optimizer": "rowwise_adagrad", "loss": "bce_logits",
            "stack": "torchrec",
        },
        "parallel": {"ranks": ranks, "cpu_lookup": "fbgemm"},
    }  # fmt: skip


def _table(rng: np.random.Generator, heavy: bool, dim: int) -> Document:
    rows = int(min(np.exp(rng.uniform(np.log(2e3), np.log(1e6))), MOST_TABLE_BYTES / (4 * dim)))
    low, high = (HEAVY_POOLING, 3 * HEAVY_POOLING) if heavy else (1.0, HEAVY_POOLING)
    pooling = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))), 1)
    skew = round(float(rng.uniform(*SKEW)), 2)
    return {"rows": rows, "dim": dim, "pooling": pooling, "indices": {"zipf": skew}}


def random_transformer(ranks: int, seed: int, role: int = CALIBRATION, family: str = "") -> Document:
    """A small BERT, GPT-2 or XLNet trained by data parallelism with AdamW."""
    rng = np.random.default_rng([role, 2, ranks, seed])
    chosen = family or FAMILIES[seed % len(FAMILIES)]
    hidden, sequence = int(rng.choice(HIDDEN)), int(rng.choice(SEQUENCES))
    tokens = np.exp(rng.uniform(*np.log(TOKENS_PER_RANK)))
    return {
        "kind": "transformer",
        "name": f"{chosen}-{seed}",
        "family": chosen,
        "layers": int(rng.integers(LAYERS[0], LAYERS[1] + 1)),
        "hidden": hidden,
        "heads": hidden // int(rng.choice((32, 64))),
        "ffn": 4 * hidden,
        "vocab": int(rng.choice(VOCABULARIES)),
        "sequence": sequence,
        "batch_per_rank": max(1, round(float(tokens) / sequence)),
        "training": {"precision": "fp32", "optimizer": "adamw", "attention": "eager"},
        "parallel": {"data": ranks},
    }


def skewed_dlrms(ranks: int, seed: int, role: int = VALIDATION) -> list[Document]:
    """One DLRM with large tables and little else, five times, by the skew of its indices alone."""
    document = random_dlrm(ranks, seed, role)
    rng = np.random.default_rng([role, 3, ranks, seed])
    tables = [
        {"rows": int(rng.integers(150_000, 250_000)), "dim": 64, "pooling": float(rng.integers(20, 60))}
        for _ in range(3 * ranks)
    ]
    dense = {"features": 64, "bottom": [128, 64], "top": [128, 1], "interaction": "dot"}
    return [
        document
        | {
            "name": f"skew-{seed}-zipf-{skew:g}",
            "batch": 512 * ranks,
            "dense": dense,
            "tables": [{**t, "indices": {"zipf": skew}} for t in tables],
        }
        for skew in SKEWS
    ]
