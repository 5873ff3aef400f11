"""How fast kernels are timed: a million distinct GEMMs, as columns and as `Kernel` objects.

    python benchmarks/kernels.py [--kernels 1000000]

Bar: one million estimates in under 5 s.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels
from stepsight.platform.gpus import load_gpu
from stepsight.workload.program import Kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    n = parser.parse_args().kernels
    rng = np.random.default_rng(0)
    sizes = {key: np.floor(np.exp(rng.uniform(0.0, 9.0, n))) for key in ("m", "n", "k")}
    start = time.perf_counter()
    models = KernelModels.for_gpu(load_gpu("A100-SXM4-80G"))
    print(f"load the models          {time.perf_counter() - start:6.2f} s")
    for dtype in ("fp32", "bf16"):
        start = time.perf_counter()
        models.estimate_batch(Batch.of("gemm", dtype, sizes, "linear"))
        print(f"{n:,} {dtype} as columns {time.perf_counter() - start:6.2f} s")
    kernels = [Kernel.of("gemm", "bf16", m=m, n=k, k=k) for m, k in zip(sizes["m"], sizes["k"], strict=True)]
    start = time.perf_counter()
    models.estimate(kernels)
    print(f"{n:,} bf16 as kernels {time.perf_counter() - start:6.2f} s")


if __name__ == "__main__":
    main()
