"""The step as a picture: ranks × streams, zoomed and read with the pointer or the keyboard.

The page carries every slice in columns of whole ticks; what could not be distinguished at any
sensible zoom is merged first, so that the file stays small however large the job is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from stepsight.estimate import FloatArray, IntArray, Source
from stepsight.prediction.answer import Prediction
from stepsight.prediction.display import look, size, source_look
from stepsight.prediction.language import left_out as repeated_words
from stepsight.program.job import Collective, Kernel
from stepsight.report.perfetto import launches
from stepsight.report.pieces import Html, asset, joined, legend, tag, text
from stepsight.report.ranks import RankSet, most_telling
from stepsight.simulate.price import COMMUNICATION
from stepsight.simulate.timeline import RankTimes, Timeline
from stepsight.terminal import counted

COLLECTIVE = "collective "
"""Before the source of a collective: its words differ from a kernel's."""
MOST_SETS = 12
"""Ranks that differ drawn below each other; more would not be read."""
MOST_SLICES = 40_000
MOST_BYTES = 1_500_000
"""What the picture may add to the page."""
TICKS = 5_000_000
"""The step in ticks: far finer than a screen, and short to write."""
FIRST_MERGE = 32
"""Ticks of the first span within which short neighbours are merged: still far below a pixel."""
LONGEST_NAME = 90


@dataclass(slots=True)
class _Words:
    """Strings, and descriptions of slices made of them, each written once.

    A description is a name, a category, details, the operator that launched it and the
    source of its time.
    """

    strings: dict[str, int] = field(default_factory=dict)
    kinds: dict[tuple[str, ...], int] = field(default_factory=dict)

    def string(self, word: str) -> int:
        short = word if len(word) <= LONGEST_NAME else word[: LONGEST_NAME - 1] + "…"
        return self.strings.setdefault(short, len(self.strings))

    def kind(self, name: str, category: str, detail: str = "", op: str = "", source: str = "") -> int:
        return self.kinds.setdefault((name, category, detail, op, source), len(self.kinds))

    def numbered(self) -> list[list[int]]:
        """Every description with its strings' numbers in place of the strings."""
        return [[self.string(word) for word in kind] for kind in self.kinds]

    def merged(self) -> IntArray:
        """For every kind, the nameless kind of its category: what a run of slices is shown as."""
        runs = [self.kind("", kind[1]) for kind in list(self.kinds)]
        return np.array(runs, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Track:
    """One line of the picture; times in µs of the job's clock, in order of their start.

    ``lead_us`` is how long before its start a kernel was launched, ``wait_us`` how much of a
    collective was spent until the last rank came. Merged slices have their ``count`` and how
    long they were ``busy_us`` in all.
    """

    name: str
    start_us: FloatArray
    end_us: FloatArray
    kind: IntArray
    lead_us: FloatArray
    wait_us: FloatArray
    count: IntArray
    busy_us: FloatArray

    def __len__(self) -> int:
        return len(self.start_us)


def picture(prediction: Prediction, sets: Sequence[RankSet]) -> tuple[Html, Html]:
    """The timeline's place on the page, and the script with its data."""
    drawn = most_telling(sets, prediction.ranks, MOST_SETS)
    data = _data(prediction, drawn)
    left_out = prediction.timeline.ranks - sum(len(a.ranks) for a in drawn)
    note = f"{counted(left_out, 'rank')} not drawn; shown are the busiest, the least busy and the first ones."
    place = Html(asset("timeline.html").replace("{spoken}", text(_spoken(prediction, drawn))))
    # No element may begin or end inside a script, whatever a kernel is called.
    safe = data.decode().replace("<", "\\u003c")
    script = Html(
        f'<script type="application/json" id="timeline-data">{safe}</script>'
        f"<script>\n{asset('timeline.js')}</script>"
    )
    meaning = legend((look(c).word, look(c).colour) for c in _categories(prediction, drawn))
    cut = [f"{words[:1].upper()}{words[1:]}." for words in repeated_words(prediction.timeline)]
    above = [tag("p", words, classes="soft") for words in ([note] if left_out else []) + cut]
    return joined([*above, place, meaning]), script


def _spoken(prediction: Prediction, drawn: Sequence[RankSet]) -> str:
    names = ", ".join(a.label for a in drawn[:4]) + (" …" if len(drawn) > 4 else "")
    return f"Timeline of {names}: host and streams over the step of {prediction.step_time_us:.0f} µs"


def _data(prediction: Prediction, drawn: Sequence[RankSet]) -> bytes:
    words = _Words()
    timeline = prediction.timeline
    ranks = [(a, timeline.rank(a.first)) for a in drawn]
    tracks = [_tracks(timeline, times, words) for _, times in ranks]
    zero = float(timeline.begin_us.min())
    first = min((float(t.start_us.min(initial=zero)) for each in tracks for t in each), default=zero)
    last = float(timeline.end_us.max())
    tick = max(last - first, 1e-3) / TICKS
    budget, encoded = MOST_SLICES, b""
    while not encoded or (len(encoded) > MOST_BYTES and budget > MOST_SETS):
        merged = _merged(tracks, budget, (last - first) / TICKS, words)
        shape = {
            "from": first - zero,
            "to": last - zero,
            "tick": tick,
            "ranks": [
                {
                    "name": a.label,
                    "window": [times.window_us[0] - zero, times.window_us[1] - zero],
                    "skipped": _skipped(timeline, times, zero),
                    "tracks": [_columns(track, first, tick) for track in each],
                }
                for (a, times), each in zip(ranks, merged, strict=True)
            ],
            "kinds": words.numbered(),
            "strings": list(words.strings),
            "looks": {c: [look(c).word, look(c).colour] for c in _categories(prediction, drawn)},
            "sources": {s.label: source_look(s.label).word for s in Source}
            | {COLLECTIVE + s.label: source_look(s.label, collective=True).word for s in Source},
        }
        encoded = msgspec.json.encode(shape)
        budget //= 2
    return encoded


def _skipped(timeline: Timeline, times: RankTimes, zero: float) -> list[Any] | None:
    """The stretch that is not drawn: from when to when, and its label, long and short."""
    if (once := times.repeated) is None:
        return None
    count, begin = f"{timeline.micro_batches_left_out:,} micro-batches", once.end_us - zero
    labels = [f"{count} that repeat those before, left out", f"{count} left out", "left out"]
    return [begin, begin + once.times * (once.end_us - once.begin_us), labels]


def _categories(prediction: Prediction, drawn: Sequence[RankSet]) -> list[str]:
    """Kinds of slices that appear: the host's first."""
    seen = {c for a in drawn for c in prediction.timeline.rank(a.first).lane.category}
    return ["host", *sorted(seen)]


def _tracks(timeline: Timeline, times: RankTimes, words: _Words) -> list[_Track]:
    tape, made, ops = times.lane.lane.tape, launches(timeline, times), times.program.ops
    kinds = np.array(
        [words.kind(op.name, "host", ", ".join(filter(None, (op.phase, op.label)))) for op in ops],
        dtype=np.int64,
    )
    none = np.zeros(len(ops))
    host = _track("host", times.op_start_us, times.op_end_us, kinds, none, none)
    slices = zip(made.items, times.lane.category, made.ops, made.sources, strict=True)
    launch_kinds = np.array(
        [
            words.kind(
                item.label, c, _detail(item), op.name, COLLECTIVE * (c == COMMUNICATION) + source.label
            )
            for item, c, op, source in slices
        ],
        dtype=np.int64,
    )
    tracks = [host]
    for number, name in enumerate(tape.streams):
        on = np.flatnonzero(tape.launch_stream == number)
        on = on[np.argsort(times.start_us[on], kind="stable")]
        start, end = times.start_us[on], times.end_us[on]
        lead, wait = np.maximum(start - made.launch_us[on], 0.0), times.begin_us[on] - start
        tracks.append(_track(name, start, end, launch_kinds[on], lead, wait))
    return tracks


def _track(
    name: str, start: FloatArray, end: FloatArray, kind: IntArray, lead: FloatArray, wait: FloatArray
) -> _Track:
    return _Track(name, start, end, kind, lead, wait, np.ones(len(start), dtype=np.int64), end - start)


def _detail(item: Kernel | Collective) -> str:
    if isinstance(item, Collective):
        return f"{item.kind}, {size(item.bytes)}, group {item.group}"
    sizes = " ".join(f"{name}={value:g}" for name, value in item.dims)
    tables = f" {counted(len(item.lookup.tables), 'table')}" if item.lookup else ""
    return f"{item.dtype} {sizes}{tables}"


def _merged(
    tracks: Sequence[Sequence[_Track]], budget: int, finest_us: float, words: _Words
) -> list[list[_Track]]:
    """The tracks with their shortest neighbours merged until all slices are within the budget."""
    result = [list(each) for each in tracks]
    below, runs = finest_us * FIRST_MERGE, words.merged()
    while sum(len(track) for each in result for track in each) > budget:
        below *= 2
        result = [[_merge(track, below, runs) for track in each] for each in tracks]
    return result


def _merge(track: _Track, below_us: float, runs: IntArray) -> _Track:
    """Runs of slices shorter than ``below_us`` that begin in the same such span become one.

    ``runs`` is what a kind is shown as in a run.
    """
    if not len(track):
        return track
    short = (track.end_us - track.start_us) < below_us
    span = np.floor(track.start_us / below_us)
    opens = np.ones(len(track), dtype=bool)
    opens[1:] = ~(short[1:] & short[:-1] & (span[1:] == span[:-1]))
    at = np.flatnonzero(opens)
    count = np.add.reduceat(track.count, at)
    end = np.maximum.reduceat(track.end_us, at)
    longest = _longest(track, at)
    kind = np.where(count > 1, runs[longest], longest)
    return _Track(
        track.name, track.start_us[at], end, kind,
        np.where(count > 1, 0.0, track.lead_us[at]), np.where(count > 1, 0.0, track.wait_us[at]), count,
        np.add.reduceat(track.busy_us, at),
    )  # fmt: skip


def _longest(track: _Track, at: IntArray) -> IntArray:
    """The kind of the longest slice of every run."""
    group = np.repeat(np.arange(len(at)), np.diff([*at, len(track)]))
    order = np.lexsort((track.end_us - track.start_us, group))
    last = np.append(np.flatnonzero(np.diff(group[order])), len(group) - 1)
    return np.asarray(track.kind[order[last]], dtype=np.int64)


def _columns(track: _Track, first_us: float, tick: float) -> dict[str, Any]:
    """Starts as differences, everything in ticks; columns that say nothing are left out."""
    start = np.rint((track.start_us - first_us) / tick).astype(np.int64)
    length = np.rint((track.end_us - first_us) / tick).astype(np.int64) - start
    columns = {
        "start": np.diff(start, prepend=0),
        "length": length,
        "kind": track.kind,
        "lead": np.rint(track.lead_us / tick).astype(np.int64),
        "wait": np.rint(track.wait_us / tick).astype(np.int64),
        "count": track.count,
        "busy": np.rint(100 * track.busy_us / np.maximum(track.end_us - track.start_us, tick)).astype(
            np.int64
        ),
    }
    columns["busy"][track.count == 1] = 100
    empty = {"lead": 0, "wait": 0, "count": 1, "busy": 100}
    kept = {n: c for n, c in columns.items() if n not in empty or (c != empty[n]).any()}
    return {"name": track.name, **{name: column.tolist() for name, column in kept.items()}}
