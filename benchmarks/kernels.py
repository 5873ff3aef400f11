"""How fast kernels are timed: a million distinct GEMMs, as columns and as `Kernel` objects.

    python benchmarks/kernels.py [--kernels 1000000]

Bar: one million estimates of a GPU with tables in under 3 s of processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel


def timed(label: str, work: Callable[[], object]) -> None:
    """Print the wall and the processor time that ``work`` takes."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{label:36s} {wall:6.2f} s, {processor:6.2f} s of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    n = parser.parse_args().kernels
    rng = np.random.default_rng(0)
    sizes = {key: np.floor(np.exp(rng.uniform(0.0, 9.0, n))) for key in ("m", "n", "k")}
    spec = load_gpu("A100-SXM4-80G")
    timed("load the models", lambda: KernelModels.for_gpu(spec))
    models = KernelModels.for_gpu(spec)
    for dtype in ("fp32", "bf16"):
        batch = Batch.of("gemm", dtype, sizes, "linear")
        timed(f"{n:,} {dtype} GEMMs as columns", lambda batch=batch: models.estimate_batch(batch))
    columns = [sizes[key].tolist() for key in ("m", "n", "k")]
    kernels = [Kernel.of("gemm", "bf16", m=m, n=n, k=k) for m, n, k in zip(*columns, strict=True)]
    timed(f"{n:,} bf16 GEMMs as kernels", lambda: models.estimate(kernels))


if __name__ == "__main__":
    main()
