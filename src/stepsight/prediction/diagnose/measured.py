"""Measured figures as people have them: ``812ms``, ``41.2k tokens/s``, ``38% MFU``, or a line of a log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepsight.errors import InputError
from stepsight.prediction.learn.runs import measured_us
from stepsight.prediction.throughput import Throughput

_TIMES = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6, "seconds": 1e6, "min": 60e6}
_RATES = {
    "tokens/s/gpu": "tokens_per_s_per_gpu", "tokens/s": "tokens_per_s", "samples/s": "samples_per_s",
    "tflop/s": "tflops_per_gpu", "mfu": "mfu",
}  # fmt: skip
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9}
_ONE = re.compile(
    r"\s*(?P<number>\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?P<scale>[kKMG](?=[ \w]*/))?\s*(?P<unit>\D.*?)?\s*",
    re.IGNORECASE,
)
FIX = "write 812ms, 41.2k tokens/s, 3100 samples/s, 210 TFLOP/s or 38% MFU"
_NUMBER = r"[:=\s]*(\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?)"
_TIME = r"(?:elapsed time per iteration|iteration time|iter[ _]time|step[ _]time|time/step|time per step)"
_PER = r"\s*(?:/|_per_|\bper\b)\s*s(?:ec(?:ond)?)?s?"
_LOG: tuple[tuple[str, str, float], ...] = (
    (_TIME + r"\s*\(?ms\)?" + _NUMBER, "time", 1e3),
    (_TIME + _NUMBER + r"\s*ms", "time", 1e3),
    (_TIME + r"\s*(?:\(s(?:ec)?\))?" + _NUMBER, "time", 1e6),
    (r"tok(?:en)?s?" + _PER + r"(?:\s*/\s*|_per_|\s*per\s*)gpu\)?" + _NUMBER, "tokens_per_s_per_gpu", 1.0),
    (r"\btps" + _NUMBER, "tokens_per_s_per_gpu", 1.0),
    (r"(?:tok(?:en)?s?" + _PER + r"|\bwps)\)?" + _NUMBER, "tokens_per_s", 1.0),
    (r"(?:samples?|images?|img|sequences?)" + _PER + r"\)?" + _NUMBER, "samples_per_s", 1.0),
    (r"\bmfu\s*(?:\(%\))?" + _NUMBER, "mfu", 1.0),
    (r"tflops?(?:/s)?(?:\s*/\s*gpu)?\)?" + _NUMBER, "tflops_per_gpu", 1.0),
)  # fmt: skip
"""Figures of a log line in the order of how directly they state the step: pattern, kind, factor.

torchtitan's ``tps`` counts one GPU, fairseq's ``wps`` all of them."""
_PER_SECOND = re.compile(
    r"(\d[\d,_]*(?:\.\d+)?)\s*([kKM]?)\s*(tok(?:ens?)?|samples?|images?|img|it(?:er)?)/s"
)
_OF_PEAK = re.compile(r"(\d+(?:\.\d+)?)\s*%?\s*MFU", re.IGNORECASE)


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


def parse_figure(text: str) -> Figure:
    """One measured figure with its unit."""
    match = _ONE.fullmatch(text)
    unit = _unit((match["unit"] or "") if match else "")
    if match is None or unit is None:
        raise InputError(f"--measured {text}", "is not a time or a rate", FIX)
    value = float(match["number"].replace(",", "").replace("_", ""))
    value *= _SCALES.get((match["scale"] or "").lower(), 1.0)
    if not value > 0:
        raise InputError(f"--measured {text}", "is not above zero", FIX)
    kind, factor = unit
    return Figure(kind, value * factor, text)


def _unit(text: str) -> tuple[str, float] | None:
    plain = text.lower().replace("per ", "/").replace(" ", "").replace("second", "s").replace("sec", "s")
    if plain in _TIMES:
        return "time", _TIMES[plain]
    plain = plain.replace("tok/", "tokens/").replace("tflops", "tflop/s").replace("/s/s", "/s")
    plain = plain.replace("images/", "samples/").replace("sequences/", "samples/").removesuffix("/gpu") + (
        "/gpu" if plain.endswith("/gpu") and "tokens" in plain else ""
    )
    if plain in ("%mfu", "mfu%", "%"):
        return "mfu", 0.01
    return (_RATES[plain], 1.0) if plain in _RATES else None


def parse_log(line: str) -> Figure:
    """The most direct figure that a log line states."""
    for pattern, kind, factor in _LOG:
        found = re.search(pattern, line, re.IGNORECASE)
        if found:
            return Figure(kind, float(found[1].replace(",", "").replace("_", "")) * factor, found[0].strip())
    rate = _PER_SECOND.search(line)
    if rate:
        value = float(rate[1].replace(",", "").replace("_", "")) * _SCALES.get(rate[2].lower(), 1.0)
        if rate[3].startswith("it"):
            return Figure("time", 1e6 / value, rate[0])
        return Figure("tokens_per_s" if rate[3].startswith("tok") else "samples_per_s", value, rate[0])
    peak = _OF_PEAK.search(line)
    if peak:
        return Figure("mfu", float(peak[1]) / 100, peak[0])
    raise InputError(f"--log {line[:60]!r}", "states no step time or rate", FIX)
