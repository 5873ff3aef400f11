"""One kernel or one collective by itself, with where its time comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepsight.collectives.roofline import bus_factor
from stepsight.dtypes import DTYPE_BYTES
from stepsight.errors import InputError
from stepsight.estimate import Source
from stepsight.hardware.gpus import load_gpu
from stepsight.hardware.spec import NEVER_EMULATED, emulated, has_units, lack, substitute
from stepsight.kernels.attention import impossible
from stepsight.kernels.columns import Batch, joined
from stepsight.kernels.families import FAMILIES, missing_sizes
from stepsight.kernels.models import KernelModels
from stepsight.kernels.roofline import TENSOR_CORE_FAMILIES, speed_of_light_us
from stepsight.platform.conditions import check_axes
from stepsight.platform.load import Platform, load_platform
from stepsight.program.job import COLLECTIVE_KINDS, Kernel
from stepsight.records import nearest
from stepsight.simulate.sustained import alone_us


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of a kernel under the names that ``stepsight kernel --json`` prints."""

    family: str
    gpu: str
    dtype: str
    dims: Mapping[str, float]
    time_us: float
    low_us: float
    high_us: float
    source: str
    note: str
    speed_of_light_us: float
    efficiency: float


def kernel_time(
    family: str, gpu: str, dtype: str = "fp32", *, name: str = "", sustained: bool = False, **sizes: float
) -> KernelTime:
    """The time of one kernel on a GPU of the catalogue.

    ``name`` is the variant where a family has several (bmm, gelu, flash2 …); ``sustained`` asks for the clock
    that the GPU keeps for hours instead of a short benchmark's.

    >>> kernel_time("gemm", "H100-SXM", "bf16", m=4096, n=4096, k=4096).source
    'learned'
    """
    if family not in FAMILIES or not FAMILIES[family].dims:
        known = [key for key, value in FAMILIES.items() if value.dims]
        raise InputError(f"kernel family {family!r}", "unknown", nearest(family, known))
    if dtype not in DTYPE_BYTES:
        raise InputError(f"dtype {dtype}", "unknown", nearest(dtype, DTYPE_BYTES))
    _check_sizes(family, sizes)
    spec = load_gpu(gpu)
    batch = Batch.of(family, dtype, {key: np.array([value]) for key, value in sizes.items()}, name or family)
    lacks = family in TENSOR_CORE_FAMILIES and not has_units(spec, dtype)
    if lacks and dtype in NEVER_EMULATED:
        raise InputError(f"dtype {dtype}", lack(spec, dtype), substitute(spec, dtype))
    why = impossible(batch.kinds[0].variant, spec, dtype) if name and family.startswith("attention") else None
    if why is not None:
        raise InputError(f"name {name}", why.problem, why.fix)
    estimate = KernelModels.for_gpu(spec).estimate_batch(batch)[0]
    if sustained:
        kernel = Kernel(family, tuple(sizes.items()), dtype)
        estimate = replace(estimate, time_us=alone_us(kernel, estimate.time_us, spec))
    light_us = float(speed_of_light_us(batch, spec)[0])
    return KernelTime(
        family=family,
        gpu=spec.name,
        dtype=dtype,
        dims=dict(sizes),
        time_us=estimate.time_us,
        low_us=estimate.low_us,
        high_us=estimate.high_us,
        source=estimate.source.label,
        note=joined(emulated(spec, dtype) if lacks else "", estimate.note),
        speed_of_light_us=light_us,
        efficiency=light_us / estimate.time_us,
    )


def _check_sizes(family: str, sizes: Mapping[str, float]) -> None:
    known = FAMILIES[family].dims
    for key, value in sizes.items():
        if key not in known:
            raise InputError(f"size {key}", f"{family} has no size {key!r}", nearest(key, known))
        if not 0 <= value < float("inf"):
            raise InputError(f"size {key}={value:g}", "is not zero or more and finite", "give a real size")
    missing = missing_sizes(family, sizes)
    if missing:
        fix = "give " + ", ".join(f"{name}=…" for name in missing)
        raise InputError(f"kernel {family}", f"needs {', '.join(missing)}", fix)


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """The time of a collective under the names that ``stepsight collective --json`` prints."""

    collective: str
    platform: str
    ranks: int
    bytes: float
    time_us: float
    low_us: float
    high_us: float
    algbw_GBps: float  # noqa: N815
    busbw_GBps: float  # noqa: N815
    source: str
    basis: str
    note: str


def collective_time(
    kind: str, platform: Platform | str, message_bytes: float, ranks: int | None = None
) -> CollectiveTime:
    """The time of one collective over ``ranks`` GPUs of a platform (all by default).

    ``message_bytes`` counts as nccl-tests does.

    >>> collective_time("all_reduce", "8xH100-SXM", 2**20).ranks
    8
    """
    if kind not in COLLECTIVE_KINDS:
        raise InputError(f"collective {kind!r}", "unknown", f"one of {', '.join(COLLECTIVE_KINDS)}")
    on = platform if isinstance(platform, Platform) else load_platform(platform)
    n = ranks or on.spec.ranks
    if n > on.spec.ranks:
        raise InputError(
            f"platform {on.name}", f"has {on.spec.ranks} GPUs, the group needs {n}",
            "name a larger platform or give fewer ranks",
        )  # fmt: skip
    check_axes(on.site, ("world",), f"platform {on.name}")
    estimate = on.conditions.collective("world", kind, message_bytes, tuple(range(n)))
    algbw = message_bytes / estimate.time_us / 1e3 if estimate.time_us > 0 else 0.0
    return CollectiveTime(
        collective=kind,
        platform=on.name,
        ranks=n,
        bytes=message_bytes,
        time_us=estimate.time_us,
        low_us=estimate.low_us,
        high_us=estimate.high_us,
        algbw_GBps=algbw,
        busbw_GBps=algbw * bus_factor(kind, n),
        source=estimate.source.label,
        basis=estimate.note or _basis(estimate.source, n),
        note=estimate.note,
    )


def _basis(source: Source, ranks: int) -> str:
    """Where an answer without a note comes from."""
    if ranks == 1:
        return "a group of one moves nothing"
    return "interpolated between measured sizes" if source is Source.MEASURED else source.label
