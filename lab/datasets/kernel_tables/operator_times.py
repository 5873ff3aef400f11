"""Times of tables whose rows are operators of several kernels (Megatron's ``op mp b l h dim``)."""

from __future__ import annotations

import numpy as np

from lab.datasets.kernel_tables.megatron import PASSES, operators
from lab.datasets.kernel_tables.rows import Table
from stepsight.errors import InputError
from stepsight.estimate import Source
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.prediction.kernel_times import TableTimes

PASS = "pass"
"""The column that says forward or backward; without it rows are forwards."""


def operator_times(table: Table, where: str) -> TableTimes:
    """The sum of each row's kernels; rows of unknown operators keep no time, and say so."""
    n = max((len(column) for column in table.values()), default=0)
    times = TableTimes(n)
    times.note = ["no kernels known for this operator"] * n
    passes = np.array([str(value) for value in table[PASS]] if PASS in table else [PASSES[0]] * n)
    wrong = sorted(set(passes.tolist()) - set(PASSES))
    if wrong:
        raise InputError(f"{where}, column {PASS}", f"{wrong[0]!r} is neither forward nor backward")
    models: dict[str, KernelModels] = {}
    for operator in operators(table, where):
        mine = np.nonzero(passes[operator.positions] == operator.direction)[0]
        if not len(mine):
            continue
        if operator.gpu not in models:
            models[operator.gpu] = KernelModels.for_gpu(load_gpu(operator.gpu))
        answers = [models[operator.gpu].estimate_batch(kernel.take(mine)) for kernel in operator.kernels]
        total = np.sum([answer.time_us for answer in answers], axis=0)
        worst = np.max([answer.source for answer in answers], axis=0)
        at = operator.positions[mine]
        times.time_us[at] = times.kernel_us[at] = total
        times.spread[at] = np.sum([a.time_us * a.spread for a in answers], axis=0) / total
        for i, position in enumerate(at.tolist()):
            times.source[position] = Source(int(worst[i])).label
            times.note[position] = "; ".join(dict.fromkeys(filter(None, (a.notes.get(i) for a in answers))))
    return times
