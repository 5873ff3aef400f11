"""A prediction as one page: how long, why, and how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.prediction.answer import Prediction
from stepsight.prediction.sensitivity import HOST
from stepsight.prediction.summary import EXPOSED, IDLE, WAITING
from stepsight.report.categories import look, source_look
from stepsight.report.page import (
    Column,
    Html,
    Part,
    bar,
    dot,
    figures,
    frame,
    joined,
    legend,
    notes,
    section,
    small_bar,
    table,
    tag,
    text,
)
from stepsight.report.page_ranks import rank_section
from stepsight.report.page_timeline import picture
from stepsight.report.ranks import alike
from stepsight.report.units import share, size, time
from stepsight.simulate.price import COMMUNICATION

MATTERS = 0.05
"""A part whose removal shortens the step by less than this share does not hold it."""
SCALE_WIDTH = 520


def page(prediction: Prediction) -> str:
    """The whole page as HTML that needs no other file."""
    sets = alike(prediction.timeline)
    place, script = picture(prediction, sets)
    sections = [
        _breakdown(prediction),
        rank_section(prediction, sets),
        section(
            "Timeline", place,
            lead="What the host and every stream do, and when. The host may run ahead of the step.",
        ),
        _memory(prediction),
        _trust(prediction),
    ]  # fmt: skip
    title = f"{prediction.workload or 'step'} on {prediction.platform}: {time(prediction.step_us)}"
    return frame(title, _top(prediction), [s for s in sections if s], scripts=[script])


def _top(p: Prediction) -> Html:
    value, unit = time(p.step_us).rsplit(" ", 1)
    number = tag("div", value, " ", tag("small", f"{unit} a step"), classes="number")
    headline = tag("div", number, tag("div", _interval(p), classes="interval"), classes="headline")
    name = tag("h1", p.workload or "step", tag("span", " on ", classes="on"), p.platform)
    return joined([name, headline, tag("p", _verdict(p), classes="verdict"), _figures(p)])


def _interval(p: Prediction) -> Html:
    """The interval on a scale that begins at zero, with the measurement where there is one."""
    top = 1.04 * max(p.high_us, p.step_us, p.measured_us or 0.0) or 1.0
    low, mid, high = (SCALE_WIDTH * us / top for us in (p.low_us, p.step_us, p.high_us))
    seen, words = "", f"90 % interval {time(p.low_us)} to {time(p.high_us)}"
    if p.measured_us is not None:
        at = SCALE_WIDTH * p.measured_us / top
        words += (
            f"; measured {time(p.measured_us)} (prediction {100 * (p.step_us / p.measured_us - 1):+.1f} %)"
        )
        seen = f'<path d="M{at:.1f} 2l5 8h-10z" fill="var(--ink)"/>'
    drawing = (
        f'<svg viewBox="0 0 {SCALE_WIDTH} 30" role="img" aria-label="{text(words)}">'
        f'<path d="M0 17H{SCALE_WIDTH}" stroke="var(--line)" stroke-width="2"/>'
        f'<rect x="{low:.1f}" y="12" width="{high - low:.1f}" height="10" rx="5" fill="var(--blue)" '
        'opacity=".35"/>'
        f'<circle cx="{mid:.1f}" cy="17" r="7" fill="var(--blue)"/>{seen}</svg>'
    )
    return joined([Html(drawing), tag("span", words, classes="soft")])


def _verdict(p: Prediction) -> Html:
    """Why it takes that long, in a sentence or two."""
    step = p.step_us or 1.0
    strongest = min(p.sensitivities, key=lambda s: s.if_free_us, default=None)
    largest = max(p.breakdown_us, key=lambda name: p.breakdown_us[name], default="")
    said = []
    if largest:
        part = share(p.breakdown_us[largest] / (sum(p.breakdown_us.values()) or 1.0))
        said.append(joined(["The largest part is ", tag("b", look(largest).word), f" with {part}."]))
    if strongest and 1 - strongest.if_free_us / step >= MATTERS:
        word = "host" if strongest.category == HOST else look(strongest.category).word
        said.append(
            joined(
                ["What holds the step is ", tag("b", f"the {word}" if word == "host" else word),
                 f": were it free, the step would take {time(strongest.if_free_us)} "
                 f"({100 * (strongest.if_free_us / step - 1):+.0f} %)."]
            )
        )  # fmt: skip
    elif strongest:
        said.append(text("No single part holds the step: none would shorten it by 5 % were it free."))
    if p.memory and p.memory.excess_bytes:
        said.append(
            tag("span", f"It does not fit into memory, by {size(p.memory.excess_bytes)}.", classes="bad")
        )
    return joined(said, " ")


def _figures(p: Prediction) -> Html:
    step = p.step_us or 1.0
    idle = p.breakdown_us.get(IDLE, 0.0)
    entries = [
        ("device active", share(p.gpu_active_us / step), f"{time(p.gpu_active_us)} of the step"),
        ("exposed communication", share(p.exposed_communication_us / step),
         "not covered by compute"),
        ("idle, host-bound", share(idle / step), "nothing launched yet"),
    ]  # fmt: skip
    if len(p.ranks) > 1:
        entries.append(("imbalance", share(p.imbalance), "busiest rank over the mean"))
    entries.append(
        ("sum of kernels alone", time(p.naive_us), f"{100 * (p.naive_us / step - 1):+.0f} % off the step")
    )
    return figures(entries)


def _breakdown(p: Prediction) -> Html:
    total = sum(p.breakdown_us.values()) or 1.0
    order = sorted(p.breakdown_us.items(), key=lambda item: (item[0] in (EXPOSED, WAITING, IDLE), -item[1]))
    parts = [Part(look(n).word, us, f"{time(us)}, {share(us / total)}", look(n).colour) for n, us in order]
    free = {s.category: s.if_free_us for s in p.sensitivities}
    free |= {EXPOSED: free.get(COMMUNICATION, p.step_us), IDLE: free.get(HOST, p.step_us)}
    largest = max(p.breakdown_us.values(), default=0.0) or 1.0
    columns = [
        Column("what the device does"), Column("time", number=True), Column("share", number=True),
        Column("", wide=True, extra=True), Column("step if it were free", number=True),
    ]  # fmt: skip
    rows = [
        (
            joined([dot(look(name).colour), look(name).word]), time(us), share(us / total),
            small_bar(us / largest, look(name).colour), _if_free(p, free.get(name)),
        )
        for name, us in sorted(p.breakdown_us.items(), key=lambda item: -item[1])
    ]  # fmt: skip
    over = "mean over ranks" if len(p.ranks) > 1 else "one rank"
    return section(
        "Where the step goes", bar(parts, name="where the step goes"), table(columns, rows),
        lead=f"What the devices do during the step ({over}), and what the step would take without it.",
    )  # fmt: skip


def _if_free(p: Prediction, us: float | None) -> str:
    if us is None:
        return ""
    change = us / (p.step_us or 1.0) - 1
    return f"{time(us)} ({100 * change:+.0f} %)" if abs(change) >= 0.005 else "no change"


def _memory(p: Prediction) -> Html | None:
    if not p.memory:
        return None
    m = p.memory
    colours = ("gemm", "embedding", "copy", "optimizer", "attention", "vector", "conv", "other")
    held = [(name.replace("_", " "), b) for name, b in m.parts_bytes.items() if b > 0]
    parts = [Part(n, b, size(b), colours[i % len(colours)]) for i, (n, b) in enumerate(held)]
    rows = [
        (joined([dot(x.colour), x.word]), x.shown, share(x.value / (m.capacity_bytes or 1.0))) for x in parts
    ]
    columns = [
        Column("what is held"),
        Column("size", number=True),
        Column("of the device's memory", number=True),
    ]
    fits = (
        tag("span", f"does not fit, by {size(m.excess_bytes)}", classes="bad")
        if m.excess_bytes
        else tag("span", "fits", classes="good")
    )
    where = f"rank {m.rank}, the fullest" if len(p.ranks) > 1 else "the device"
    lead = joined([f"{size(m.total_bytes)} of {size(m.capacity_bytes)} on {where}: ", fits, "."])
    return section(
        "Memory", bar(parts, total=m.capacity_bytes, name="memory"), table(columns, rows), lead=lead
    )  # fmt: skip


def _trust(p: Prediction) -> Html:
    shares = p.coverage.share_by_source
    parts = [Part(source_look(n).word, s, share(s), source_look(n).colour) for n, s in shares.items()]
    weak = sum(s for name, s in shares.items() if name in ("roofline", "default"))
    lead = (
        f"{share(1 - weak)} of device time rests on measurements or on models fitted to them, "
        f"{share(weak)} on speed-of-light figures or defaults."
    )
    body: list[Html] = [bar(parts, name="device time by source"), _by_source(parts)]
    if p.coverage.without_model:
        rows = [
            (u.kernel, tag("code", u.op), source_look(u.source).word, time(u.time_us))
            for u in p.coverage.without_model
        ]
        columns = [
            Column("kernel"),
            Column("operator"),
            Column("instead", extra=True),
            Column("time a step", number=True),
        ]
        body.append(
            tag(
                "details", tag("summary", f"{len(rows)} operations without a fitted model, longest first"),
                table(columns, rows),
            )
        )  # fmt: skip
    if p.notes:
        body += [tag("p", "Notes", classes="soft"), notes(p.notes)]
    return section("How far to trust it", *body, lead=lead)


def _by_source(parts: Sequence[Part]) -> Html:
    return legend(Part(f"{x.word} {x.shown}", x.value, x.shown, x.colour) for x in parts)
