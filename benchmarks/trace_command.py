"""`stepsight predict --trace FILE --json` as people type it: its processor time, start-up included.

python benchmarks/trace_command.py [FILE …] [--repeats 5] [--json]

Without files a trace of 55 MB is made (`trace_size.document`). Bar for that size: a median under 3 s.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from trace_size import document

MOST_SECONDS, MEGABYTES = 3.0, 55.0
EVENTS = 232_000
"""About as many as make 55 MB."""


def cpu_s(path: Path) -> float:
    """Processor time of one prediction by a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "stepsight", "predict", "--trace", str(path), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = given.files
        if not files:
            files = [Path(folder) / "trace.json"]
            files[0].write_text(json.dumps(document(EVENTS)))
        for file in files:
            times = sorted(cpu_s(file) for _ in range(given.repeats))
            rows.append({"file": file.name, "megabytes": file.stat().st_size / 1e6,
                         "median_s": statistics.median(times), "seconds": times})  # fmt: skip
    met = all(row["median_s"] < MOST_SECONDS for row in rows)
    if given.json:
        print(json.dumps({"rows": rows, "met": met}, indent=2))
    else:
        for row in rows:
            print(f"{row['file']} ({row['megabytes']:.0f} MB): {row['median_s']:.2f} s of processor time")
        print("met" if met else "MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
