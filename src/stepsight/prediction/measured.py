"""A measured figure with its unit, as people and training logs write it, and the step that it means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepsight.errors import InputError
from stepsight.prediction.throughput import Throughput

PER_GPU = "_per_gpu"
_TIMES = {
    "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "min": 60e6, "mins": 60e6, "minutes": 60e6, "minute": 60e6,
}  # fmt: skip
_RATES = {
    "tokens/s/gpu": "tokens_per_s_per_gpu", "tokens/s": "tokens_per_s", "samples/s": "samples_per_s",
    "samples/s/gpu": "samples_per_s_per_gpu", "tflop/s": "tflops_per_gpu", "tflop/s/gpu": "tflops_per_gpu",
    "tgs": "tokens_per_s_per_gpu", "mfu": "mfu", "%mfu": "mfu", "mfu%": "mfu", "%": "mfu",
}  # fmt: skip
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9}
_ONE = re.compile(
    r"\s*(?P<number>\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?P<scale>[kKMG](?=[ \w]*/))?\s*(?P<unit>\D.*?)?\s*",
    re.IGNORECASE,
)
FIX = "write 812ms, 41.2k tokens/s, 5100 tokens/s/gpu, 3100 samples/s, 210 TFLOP/s or 38% MFU"
_NUMBER = r"[:=\s]*(\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?)"
_TIME = r"(?:elapsed time per iteration|iteration time|iter[ _]time|step[ _]time|time/step|time per step)"
_PER = r"\s*(?:/|_per_|\bper\b)\s*s(?:ec(?:ond)?)?s?"
_LOG: tuple[tuple[str, str, float], ...] = (
    (_TIME + r"\s*\(?ms\)?" + _NUMBER, "time", 1e3),
    (_TIME + _NUMBER + r"\s*ms", "time", 1e3),
    (_TIME + r"\s*(?:\(s(?:ec)?\))?" + _NUMBER, "time", 1e6),
    (r"tok(?:en)?s?" + _PER + r"(?:\s*/\s*|_per_|\s*per\s*)gpu\)?" + _NUMBER, "tokens_per_s_per_gpu", 1.0),
    (r"\b(?:tps|tgs)\b(?:\s*\([^)]*\))?" + _NUMBER, "tokens_per_s_per_gpu", 1.0),
    (r"(?:tok(?:en)?s?" + _PER + r"|\bwps)\)?" + _NUMBER, "tokens_per_s", 1.0),
    (r"(?:samples?|images?|img|sequences?)" + _PER + r"\)?" + _NUMBER, "samples_per_s", 1.0),
    (r"\bmfu\s*(?:\(%\)|%)" + _NUMBER, "mfu", 0.01),
    (r"\bmfu" + _NUMBER + r"\s*%", "mfu", 0.01),
    (r"\bmfu" + _NUMBER, "mfu", 1.0),
    (r"tflops?(?:/s)?(?:\s*/\s*gpu)?\)?" + _NUMBER, "tflops_per_gpu", 1.0),
)  # fmt: skip
"""Figures of a log line in the order of how directly they state the step: pattern, kind, factor.

torchtitan's ``tps`` and InternEvo's ``tgs`` count one GPU, fairseq's ``wps`` all of them."""
_PER_SECOND = re.compile(
    r"(\d[\d,_]*(?:\.\d+)?)\s*([kKM]?)\s*(tok(?:ens?)?|samples?|images?|img|it(?:er)?)/s(/gpu)?",
    re.IGNORECASE,
)
_PER_STEP = re.compile(r"(\d[\d,_]*(?:\.\d+)?)\s*(ms|s)/(?:it(?:er)?|step)\b", re.IGNORECASE)
_OF_PEAK = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)\s*MFU", re.IGNORECASE)
_EACH_STEP = ("/it", "/iter", "/iteration", "/step")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its kind: ``time`` in µs, or the name of a rate of `Throughput`."""

    kind: str
    value: float
    text: str

    def step_us(self, rates: Throughput, step_us: float) -> float:
        """The step time that it means for a job that is predicted at ``step_us`` and ``rates``."""
        if self.kind == "time":
            return self.value
        return measured_us(self.kind, self.value, rates, step_us, f"--measured {self.text}")


def measured_us(rate: str, value: float, rates: Throughput, step_us: float, where: str) -> float:
    """The step time at which a job of these rates reaches a measured one."""
    predicted = getattr(rates, rate)
    if not predicted:
        raise InputError(where, "the job has no such rate", "give a step time, such as 812ms")
    return step_us * float(predicted) / value


def share_of_peak(value: float) -> float:
    """MFU as a share; without a percent sign a number above one is a percentage."""
    return value / 100 if value > 1 else value


def check_peak(us: float, rates: Throughput, step_us: float, where: str, kind: str = "time") -> None:
    """Refuses a step that would need more arithmetic per second than the GPUs have."""
    share = (rates.mfu or 0.0) * step_us / us
    if share <= 1:
        return
    whole = kind.removesuffix(PER_GPU)
    unit = whole.replace("_per_s", "/s")
    fix = (
        f"write {unit} if the figure counts all GPUs"
        if whole != kind
        else "check its unit, the batch and the platform"
    )
    raise InputError(
        where,
        f"is faster than the hardware's peak allows: {100 * share:,.0f} % of its {rates.dtype} peak",
        fix,
    )


def parse_figure(text: str) -> Figure:
    """One measured figure with its unit."""
    match = _ONE.fullmatch(text)
    unit = _unit((match["unit"] or "") if match else "")
    if match is None or unit is None:
        try:
            return parse_log(text)
        except InputError:
            raise InputError(f"--measured {text}", "is not a time or a rate", FIX) from None
    value = float(match["number"].replace(",", "").replace("_", ""))
    value *= _SCALES.get((match["scale"] or "").lower(), 1.0)
    if not value > 0:
        raise InputError(f"--measured {text}", "is not above zero", FIX)
    kind, factor = unit
    if kind == "iterations":
        return Figure("time", 1e6 / value, text)
    share = kind == "mfu" and factor == 1.0
    return Figure(kind, share_of_peak(value) if share else value * factor, text)


def _unit(text: str) -> tuple[str, float] | None:
    plain = text.lower().replace("per ", "/").replace(" ", "")
    plain = plain.replace("seconds", "s").replace("second", "s").replace("secs", "s").replace("sec", "s")
    time = next((plain.removesuffix(each) for each in _EACH_STEP if plain.endswith(each)), plain)
    if time in _TIMES:
        return "time", _TIMES[time]
    if plain in ("it/s", "iter/s", "iterations/s", "steps/s", "step/s"):
        return "iterations", 1.0
    plain = plain.replace("tok/", "tokens/").replace("tflops", "tflop/s").replace("/s/s", "/s")
    plain = plain.replace("images/", "samples/").replace("sequences/", "samples/")
    if plain not in _RATES:
        return None
    return _RATES[plain], 0.01 if "%" in plain else 1.0


def parse_log(line: str) -> Figure:
    """The most direct figure that a log line states."""
    for pattern, kind, factor in _LOG:
        found = re.search(pattern, line, re.IGNORECASE)
        if found:
            value = float(found[1].replace(",", "").replace("_", ""))
            value = share_of_peak(value) if kind == "mfu" and factor == 1 else value * factor
            return Figure(kind, value, found[0].strip())
    each = _PER_STEP.search(line)
    if each:
        return Figure("time", float(each[1].replace(",", "")) * _TIMES[each[2].lower()], each[0])
    rate = _PER_SECOND.search(line)
    if rate:
        value = float(rate[1].replace(",", "").replace("_", "")) * _SCALES.get(rate[2].lower(), 1.0)
        counted = rate[3].lower()
        if counted.startswith("it"):
            return Figure("time", 1e6 / value, rate[0])
        kind = "tokens_per_s" if counted.startswith("tok") else "samples_per_s"
        return Figure(kind + ("_per_gpu" if rate[4] else ""), value, rate[0])
    peak = _OF_PEAK.search(line)
    if peak:
        value = float(peak[1])
        return Figure("mfu", value / 100 if peak[2] else share_of_peak(value), peak[0])
    raise InputError(f"--log {line[:60]!r}", "states no step time or rate", FIX)
