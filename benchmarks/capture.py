"""Processor time of capturing one rank of each documented script, at world 8 and world 1,024.

    python benchmarks/capture.py [SCRIPT …]

Prints seconds of processor time, seconds of wall time and the number of operators and kernels of the step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from stepsight.capturing.ranks import Capturing
from stepsight.capturing.request import request
from stepsight.errors import StepsightError
from stepsight.platform.load import load_platform

EXAMPLES = Path(__file__).parents[1] / "examples" / "capture"
WORLDS = {8: "8xH100-SXM", 1024: "128x8xH100-SXM-400G"}
BAR_SECONDS = 60


def main(names: list[str]) -> int:
    missed = 0
    for script in sorted(EXAMPLES.glob("*.py")):
        if names and script.name not in names:
            continue
        for world, platform in WORLDS.items():
            spec = load_platform(platform).spec
            asked = request(spec.gpu, str(script), world=world, per_node=spec.gpus_per_node)
            capturing = Capturing(asked)
            started = time.perf_counter()
            try:
                step = capturing.step(script.name, [0])
            except StepsightError as error:
                print(f"{script.name} world {world}: {error}")
                continue
            wall = time.perf_counter() - started
            seconds = capturing.answers[0].seconds
            ops = step.job.programs[0].ops
            kernels = sum(len(op.kernels) for op in ops)
            missed += seconds > BAR_SECONDS
            print(
                f"{script.name:24} world {world:5}: {seconds:5.1f} s processor, {wall:5.1f} s wall, "
                f"{len(ops):6,} operators, {kernels:6,} kernels"
            )
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
