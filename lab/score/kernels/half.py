"""Half-precision operators of Megatron on A100 and GH200: shapes left out, and one GPU from the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.datasets.kernel_tables.files import read_table
from lab.datasets.kernel_tables.megatron import FILE, PASSES, Operator, edition, operators, possible
from lab.fit.kernels.half import left_out
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.score import BLIND, CHOSEN, FIT, Score, gmae

TOPIC = "kernels"
NINETY = 1.645
"""Half-width of a normal distribution's 90 % interval in standard deviations."""
OTHER_GPU = 0.12
BARS = {
    "linear1": 0.04, "linear2": 0.04, "linear3": 0.04, "linear4": 0.04, "bmm": 0.04, "baddbmm": 0.04,
    "flash_atten": 0.05, "softmax": 0.06, "ScaledUpperTriangMaskedSoftmax": 0.06, "fillmask": 0.06,
    "gelu": 0.06, "layernorm": 0.06, "RMSlayernorm": 0.06, "res_add": 0.06, "RoPE": 0.06,
}  # fmt: skip
BACKWARD_BARS = {"flash_atten": 0.06}


@dataclass(frozen=True, slots=True)
class Judged:
    """One operator on one GPU: predicted next to measured, and whether the 90 % interval holds each row."""

    op: str
    label: str
    gpu: str
    predicted: FloatArray
    measured: FloatArray
    inside: npt.NDArray[np.bool_]


def half_scores(data: Path, rows: str) -> list[Score]:
    """One line per operator, direction and GPU; then GH200 by A100's fits alone.

    A file other than the one that was fitted is scored whole, whatever ``rows`` says.
    """
    path = data / "kernels" / FILE
    if not path.is_file():
        return []
    table = read_table(path)
    times = {key: np.asarray(table[f"{key}_us"], dtype=np.float64) for key in PASSES}
    found: list[Score] = []
    fitted = {r.source for r in KernelModels.for_gpu(load_gpu("GH200-96G")).residuals}
    some = rows == "heldout" and edition(table) in fitted
    for operator in operators(table, str(path)):
        spec = load_gpu(operator.gpu)
        measured = times[operator.direction][operator.positions]
        able = possible(operator, measured, spec)
        once = stated_once(operator, times)
        chosen = able & (left_out(operator) if some else True)
        if not (chosen & ~once).any():
            continue
        whole = judge(operator, measured, chosen, KernelModels.for_gpu(spec))
        used = "a fifth of the shapes, left out" if some else "all rows"
        bars = BARS | BACKWARD_BARS if operator.direction == "backward" else BARS
        judged, apart = _apart(whole, once[chosen])
        found.append(
            _score(
                judged, used, bars.get(operator.op), _without(able), apart, kind=f"fp16 {operator.op}",
                exposure=CHOSEN if some else FIT if edition(table) in fitted else BLIND,
            )
        )  # fmt: skip
    return found + list(_from_another(table, times, str(path)))


def judge(
    operator: Operator, measured: FloatArray, chosen: npt.NDArray[np.bool_], models: KernelModels
) -> Judged:
    """The sum of an operator's kernels against its time; their spreads are not independent, so they add."""
    at = np.nonzero(chosen)[0]
    answers = [models.estimate_batch(kernel.take(at)) for kernel in operator.kernels]
    total = np.sum([answer.time_us for answer in answers], axis=0)
    spread = np.sum([answer.time_us * answer.spread for answer in answers], axis=0) / total
    inside = np.abs(np.log(measured[at] / total)) <= NINETY * spread
    return Judged(operator.op, operator.label, operator.gpu, total, measured[at], inside)


def _from_another(table: object, times: dict[str, FloatArray], where: str) -> Iterator[Score]:
    """GH200 with every fit on Hopper and Blackwell taken away."""
    spec = load_gpu("GH200-96G")
    models = KernelModels.for_gpu(spec)
    blind = KernelModels(
        spec,
        tuple(m for m in models.shipped if m.machine.architecture not in ("hopper", "blackwell")),
        models.streams,
        residuals=tuple(r for r in models.residuals if r.architecture != spec.architecture),
    )
    parts: list[Judged] = []
    for operator in operators(table, where):  # type: ignore[arg-type]
        if operator.gpu != spec.name:
            continue
        measured = times[operator.direction][operator.positions]
        able = possible(operator, measured, spec)
        once = stated_once(operator, times)
        if not (able & ~once).any():
            continue
        judged, apart = _apart(judge(operator, measured, able, blind), once[able])
        parts.append(judged)
        constants = operator.kernels[0].family in ("gemm", "attention", "attention_backward")
        used = "by A100's fits alone" if constants else "A100's corrections on constants fitted to both"
        yield _score(
            judged, f"{used}, all rows", OTHER_GPU, _without(able), apart, prefix="from A100: ",
            kind="from A100: fp16, one operator", exposure=CHOSEN if constants else FIT,
        )  # fmt: skip
    if parts:
        lines = f"all rows of {len(parts)} lines"
        yield _score(_pooled(parts), lines, OTHER_GPU, prefix="from A100: ", exposure=FIT)


def stated_once(operator: Operator, times: Mapping[str, FloatArray]) -> npt.NDArray[np.bool_]:
    """Rows whose two passes agree to the last digit where those of other rows differ: one was not measured.

    Which of the two is not stated, so they stand for neither.
    """
    same = np.equal(*(times[key][operator.positions] for key in ("forward", "backward")))
    return np.zeros_like(same) if same.all() else same


def _without(able: npt.NDArray[np.bool_]) -> str:
    gone = int((~able).sum())
    return f"without {gone} rows faster than the GPU can be" if gone else ""


def _apart(whole: Judged, once: npt.NDArray[np.bool_]) -> tuple[Judged, str]:
    """The rows that state two times, and what the line would read with the others."""
    if not once.any():
        return whole, ""
    kept = ~once
    judged = replace(
        whole, predicted=whole.predicted[kept], measured=whole.measured[kept], inside=whole.inside[kept]
    )
    error = gmae(whole.predicted, whole.measured)
    words = f"without {int(once.sum())} rows that state one time for both passes ({error:.1%} with them)"
    return judged, words


def _pooled(parts: Sequence[Judged]) -> Judged:
    return Judged(
        "all operators", "all operators", parts[0].gpu, *(
            np.concatenate([getattr(part, key) for part in parts])
            for key in ("predicted", "measured", "inside")
        ),
    )  # fmt: skip


def _score(
    judged: Judged, used: str, bar: float | None, *notes: str, prefix: str = "", kind: str = "",
    exposure: str = CHOSEN,
) -> Score:  # fmt: skip
    held = f"{judged.inside.mean():.0%} inside the 90 % interval"
    return Score.of(
        TOPIC, f"{prefix}fp16 {judged.label} {judged.gpu}", judged.predicted, judged.measured, used,
        gmae_target=bar, note="; ".join(filter(None, (held, *notes))), exposure=exposure, kind=kind,
    )  # fmt: skip
