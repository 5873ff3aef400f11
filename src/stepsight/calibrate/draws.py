"""What is measured: random workloads, the kernels and tables that they are made of, and other kernels.

Draws are seeded; calibration and validation never share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepsight.kernels.measured import variant
from stepsight.kernels.models import EMBEDDING_FAMILIES
from stepsight.program.job import Kernel
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import EAGER, TORCHREC_STACK
from stepsight.workload.dlrm.embeddings import rank_lookup
from stepsight.workload.files import Workload, parse_workload

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

FAMILIES = ("bert", "gpt2", "xlnet")
LAYERS = (2, 4)
HIDDEN = (128, 192, 256, 384)
SEQUENCES = (32, 64, 128)
TOKENS_PER_RANK = (64, 1024)
VOCABULARIES = (2000, 5000, 10000)

Document = dict[str, Any]


def random_documents(
    ranks: int, dlrms: int, transformers: int, stack: str = EAGER, role: int = CALIBRATION, first: int = 0
) -> list[Document]:
    """Random workloads of both kinds; of TorchRec's stack DLRMs alone, which differ from the others' in what
    that stack is for."""
    draw = random_torchrec if stack == TORCHREC_STACK else random_dlrm
    documents = [draw(ranks, first + i, role) for i in range(dlrms)]
    more = transformers if stack != TORCHREC_STACK else 0
    return documents + [
        random_transformer(ranks, first + i, role, FAMILIES[i % len(FAMILIES)]) for i in range(more)
    ]


def rehearsal_documents(ranks: int, dlrms: int, transformers: int, stack: str = EAGER) -> list[Document]:
    """The workloads of a calibration, DLRMs with each batch size equally often: short steps, which latencies
    decide, are as many as long ones. Of TorchRec's stack DLRMs alone, and as many in all."""
    if stack == TORCHREC_STACK:
        dlrms, transformers = dlrms + transformers, 0
    documents = random_documents(ranks, dlrms, transformers, stack)
    for i, document in enumerate(documents[:dlrms]):
        turn = i // 2 % len(BATCHES_PER_RANK)  # models with heavy and with mixed tables take turns
        document["batch"] = BATCHES_PER_RANK[turn] * ranks
    return documents


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
    rows = int(min(_between(rng, 2e3, 1e6), MOST_TABLE_BYTES / (4 * dim)))
    low, high = (HEAVY_POOLING, 3 * HEAVY_POOLING) if heavy else (1.0, HEAVY_POOLING)
    pooling = round(_between(rng, low, high), 1)
    return {
        "rows": rows,
        "dim": dim,
        "pooling": pooling,
        "indices": {"zipf": round(float(rng.uniform(*SKEW)), 2)},
    }


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def random_transformer(ranks: int, seed: int, role: int = CALIBRATION, family: str = "") -> Document:
    """A small BERT, GPT-2 or XLNet trained by data parallelism with AdamW."""
    rng = np.random.default_rng([role, 2, ranks, seed])
    chosen = family or FAMILIES[seed % len(FAMILIES)]
    hidden, sequence = int(rng.choice(HIDDEN)), int(rng.choice(SEQUENCES))
    tokens = _between(rng, *TOKENS_PER_RANK)
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
        "batch_per_rank": max(1, round(tokens / sequence)),
        "training": {"precision": "fp32", "optimizer": "adamw", "attention": "eager"},
        "parallel": {"data": ranks},
    }


TABLE_ROWS, TABLE_DIMS, BAGS, POOLING = (500.0, 1e6), (16, 32, 64, 128, 256), (256.0, 4096.0), (1.0, 200.0)
LARGEST_TABLE_BYTES = 128 << 20
MOST_LOOKUP_BYTES = 224 << 20


def random_tables(count: int, seed: int) -> list[dict[str, Any]]:
    """Tables over the ranges that calibration covers: every other one skewed."""
    rng = np.random.default_rng([seed, 5])
    tables: list[dict[str, Any]] = []
    while len(tables) < count:
        dim = int(rng.choice(TABLE_DIMS))
        bags, pooling = round(_between(rng, *BAGS)), round(_between(rng, *POOLING), 1)
        if bags * pooling * dim * 4 > MOST_LOOKUP_BYTES:
            continue
        rows = int(min(_between(rng, *TABLE_ROWS), LARGEST_TABLE_BYTES / (4 * dim)))
        skew = round(float(rng.uniform(0.3, 1.3)), 2) if rng.random() < 0.7 else 0.0
        tables.append({"rows": rows, "dim": dim, "batch": bags, "pooling": pooling, "zipf": skew})
    return tables


def table_lookup(record: Mapping[str, Any]) -> TableLookup:
    return TableLookup(
        int(record["rows"]), int(record["dim"]), int(record["batch"]), float(record["pooling"]),
        IndexDistribution.zipf(record["zipf"]) if record["zipf"] else IndexDistribution.uniform(),
    )  # fmt: skip


def rank_tables(document: Mapping[str, Any], rank: int) -> Lookup:
    """What a rank of a described DLRM looks up in one call."""
    workload = parse_workload(dict(document), str(document["name"]))
    assert isinstance(workload, DlrmWorkload)
    return rank_lookup(workload.config, workload.plan, rank, fused=True)


GRID_SHARE = 0.3
EVEN = 8
FEWEST_SHAPES = 12
"""A variant with fewer shapes in the drawn workloads gets scaled copies of them up to this many."""
_ROWS = ("rows",)
_FREE_SIZES = {
    "gemm": ("m", "n", "k"), "elementwise": ("elements",), "softmax": _ROWS, "softmax_backward": _ROWS,
    "layer_norm": _ROWS, "layer_norm_backward": _ROWS, "reduce": ("rows", "cols"), "copy_d2d": ("bytes",),
    "fill": ("bytes",), "transpose": ("elements",), "gather": _ROWS, "scatter": _ROWS, "nll_loss": _ROWS,
    "nll_loss_backward": _ROWS, "concat": ("write_bytes",),
}  # fmt: skip
"""Sizes that may be changed on their own without contradicting another one."""


def kernels_of(workloads: Iterable[Workload], device: str) -> list[Kernel]:
    """Every distinct kernel of these workloads on a device, lookups left out."""
    kernels = (
        kernel
        for workload in workloads
        for program in workload.job(device).programs
        for op in program.ops
        for kernel in op.kernels
    )
    return [k for k in dict.fromkeys(kernels) if k.family not in EMBEDDING_FAMILIES and k.lookup is None]


def chosen_kernels(workloads: Sequence[Workload], device: str, most: int, seed: int = 0) -> list[Kernel]:
    """At most ``most`` kernels, shared fairly among variants: rare ones all, common ones by lot."""
    rng = np.random.default_rng(seed)
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels_of(workloads, device):
        groups.setdefault(variant(kernel), []).append(kernel)
    drawn = int(most * (1 - GRID_SHARE))
    # Matrix products have three sizes and most of the time; the others mostly one size.
    weights = {n: (4.0 if n.startswith("gemm/") else 1.0) * len(g) ** 0.5 for n, g in groups.items()}
    total = sum(weights.values())
    kept: list[Kernel] = []
    for name, members in groups.items():
        share = max(FEWEST_SHAPES, round(drawn * weights[name] / total))
        picked = [members[i] for i in rng.permutation(len(members))[:share]]
        kept += picked + _grid(picked, min(FEWEST_SHAPES, share) - len(picked), rng)
    return kept + _grid(kept, most - len(kept), rng)


def _grid(kernels: Sequence[Kernel], count: int, rng: np.random.Generator) -> list[Kernel]:
    """``count`` kernels like the given ones, each free size multiplied by up to four or divided."""
    free = [k for k in kernels if k.family in _FREE_SIZES and k.operator != "index_put"]
    return [
        scaled(free[int(rng.integers(len(free)))], np.exp(rng.uniform(-1.4, 1.4, 3)).tolist())
        for _ in range(max(count, 0) if free else 0)
    ]


def scaled(kernel: Kernel, factors: Sequence[float]) -> Kernel:
    """The kernel with its free sizes multiplied; what follows from them follows."""
    sizes = dict(kernel.dims)
    before = sizes.get("elements", 1.0)
    for name, factor in zip(_FREE_SIZES[kernel.family], factors, strict=False):
        step = EVEN if sizes.get(name, 1.0) % EVEN == 0 else 1  # layer widths are seldom odd
        sizes[name] = float(max(step, step * round(sizes.get(name, 1.0) * factor / step)))
    if kernel.family == "elementwise":
        ratio = sizes["elements"] / before
        sizes["read_bytes"], sizes["write_bytes"] = sizes["read_bytes"] * ratio, sizes["write_bytes"] * ratio
    if kernel.family == "concat":
        sizes["read_bytes"] = sizes["write_bytes"]
    return replace(kernel, dims=tuple(sizes.items()))


FEW = 14
"""Kernels of each kind that drawn workloads lack: enough for a smooth efficiency (`Efficiency.fit`)."""
MOST_ELEMENTS = 8e6
"""A kernel takes tens of milliseconds of one CPU core at most."""


def other_kernels(seed: int = 0) -> list[Kernel]:
    """``FEW`` kernels of every kind that descriptions may ask for and drawn workloads do not have."""
    rng = np.random.default_rng([seed, 17])

    def size(low: float, high: float) -> int:
        return round(_between(rng, low, high))

    def attention() -> dict[str, float]:
        length, heads = 16 * size(1, 32), size(1, 16)
        return {
            "batch": size(1, 8), "heads": heads, "kv_heads": heads, "q": length, "kv": length,
            "head_dim": int(rng.choice([32, 64, 128])), "causal": int(rng.integers(2)),
        }  # fmt: skip

    def update() -> dict[str, float]:
        n = size(1e4, MOST_ELEMENTS)
        return {"elements": n, "read_bytes": 8 * n, "write_bytes": 4 * n, "tensors": size(1, 100)}

    def copy() -> dict[str, float]:
        return {"bytes": 4 * size(256, MOST_ELEMENTS)}

    sizes: dict[str, Callable[[], dict[str, float]]] = {
        "attention": attention, "attention_backward": attention, "optimizer": update,
        "dropout": lambda: {"elements": size(1e3, MOST_ELEMENTS)}, "copy_h2d": copy, "copy_d2h": copy,
    }  # fmt: skip
    return [
        replace(Kernel.of(family), dims=tuple(draw().items()))
        for family, draw in sizes.items()
        for _ in range(FEW)
    ]
