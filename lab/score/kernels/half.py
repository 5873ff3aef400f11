"""Half-precision operators of Megatron on A100 and GH200: shapes left out, and one GPU from the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.datasets.folder import read_table
from lab.datasets.kernel_tables.megatron import FILE, PASSES, Operator, edition, operators, possible
from lab.fit.kernels.half import left_out
from lab.score.kernels.judged import Judged
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.score import BLIND, CHOSEN, FIT, Score

OTHER_GPU = 0.12
BARS = {
    "linear1": 0.04, "linear2": 0.04, "linear3": 0.04, "linear4": 0.04, "bmm": 0.04, "baddbmm": 0.04,
    "flash_atten": 0.05, "softmax": 0.06, "ScaledUpperTriangMaskedSoftmax": 0.06, "fillmask": 0.06,
    "gelu": 0.06, "layernorm": 0.06, "RMSlayernorm": 0.06, "res_add": 0.06, "RoPE": 0.06,
}  # fmt: skip
BACKWARD_BARS = {"flash_atten": 0.06}


def half_scores(data: Path, rows: str) -> list[Score]:
    """One line per operator, direction and GPU; then GH200 by A100's fits alone.

    A file other than the one that was fitted is scored whole, whatever ``rows`` says. Rows that are faster
    than the GPU can be, or that state one time for both passes, are left out.
    """
    path = data / "kernels" / FILE
    if not path.is_file():
        return []
    table = read_table(path)
    times = {key: np.asarray(table[f"{key}_us"], dtype=np.float64) for key in PASSES}
    fitted = {r.source for r in KernelModels.for_gpu(load_gpu("GH200-96G")).residuals}
    some = rows == "heldout" and edition(table) in fitted
    exposure = CHOSEN if some else FIT if edition(table) in fitted else BLIND
    found: list[Score] = []
    every = list(operators(table, str(path)))
    for operator in every:
        able = _able(operator, times)
        chosen = able & (left_out(operator) if some else True)
        if chosen.any():
            used = "a fifth of the shapes, left out" if some else "all rows"
            used += f"; {int((~able).sum())} rows cannot be" if not able.all() else ""
            bars = BARS | BACKWARD_BARS if operator.direction == "backward" else BARS
            models = KernelModels.for_gpu(load_gpu(operator.gpu))
            judged = _judged(operator, times, chosen, models, used, f"fp16 {operator.op}")
            found.append(judged.score((bars.get(operator.op), None), exposure=exposure))
    return found + list(_from_another(every, times))


def _able(operator: Operator, times: Mapping[str, FloatArray]) -> npt.NDArray[np.bool_]:
    """Rows no faster than the GPU can be whose passes differ: where those of other rows do, one of two that
    agree to the last digit was not measured."""
    ahead, back = (times[key][operator.positions] for key in PASSES)
    able = possible(operator, times[operator.direction][operator.positions], load_gpu(operator.gpu))
    same = np.equal(ahead, back)
    return able & (np.ones_like(same) if same.all() else ~same)


def _judged(
    operator: Operator, times: Mapping[str, FloatArray], chosen: npt.NDArray[np.bool_], models: KernelModels,
    used: str, kind: str, prefix: str = "",
) -> Judged:  # fmt: skip
    """The sum of an operator's kernels against its time; their spreads are not independent, so they add."""
    at = np.nonzero(chosen)[0]
    answers = [models.estimate_batch(kernel.take(at)) for kernel in operator.kernels]
    total = np.sum([answer.time_us for answer in answers], axis=0)
    spread = np.sum([answer.time_us * answer.spread for answer in answers], axis=0) / total
    measured = times[operator.direction][operator.positions][at]
    return Judged.of(f"{prefix}fp16 {operator.label} {operator.gpu}", total, measured, spread, used, kind)


def _from_another(every: list[Operator], times: Mapping[str, FloatArray]) -> Iterator[Score]:
    """GH200 with every fit on Hopper and Blackwell taken away."""
    spec, prefix = load_gpu("GH200-96G"), "from A100: "
    models = KernelModels.for_gpu(spec)
    blind = KernelModels(
        spec,
        tuple(m for m in models.shipped if m.machine.architecture not in ("hopper", "blackwell")),
        models.streams,
        residuals=tuple(r for r in models.residuals if r.architecture != spec.architecture),
    )
    parts: list[Judged] = []
    for operator in every:
        able = _able(operator, times)
        if operator.gpu != spec.name or not able.any():
            continue
        constants = operator.kernels[0].family in ("gemm", "attention", "attention_backward")
        used = "by A100's fits alone" if constants else "A100's corrections on constants fitted to both"
        kind = f"{prefix}fp16, one operator"
        parts.append(_judged(operator, times, able, blind, f"{used}, all rows", kind, prefix))
        yield parts[-1].score((OTHER_GPU, None), exposure=CHOSEN if constants else FIT)
    if parts:
        name, lines = f"{prefix}fp16 all operators {spec.name}", f"all rows of {len(parts)} lines"
        yield Judged.pooled(name, parts, lines).score((OTHER_GPU, None), exposure=FIT)
