"""Sizes of persistent GEMMs (cuBLAS's nvjet kernels) in compiled code that recorded no shapes.

A persistent kernel launches one block a multiprocessor, whatever its size. But compiled code
says much around it: row kernels launch one block a token, point-wise kernels count their
elements exactly, so tokens and widths show. The name ends in which operands are transposed:
"NT" sums over the tokens, as a weight's gradient does.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from stepsight.trace.linking.launches import Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.launch_grid import elements_by_grid

_NVJET = re.compile(r"^nvjet_.*_([NT])([NT])[NT]$")
_ROWS = re.compile(r"^triton_(per|red)_fused")
_POINTS = re.compile(r"^triton_poi_fused")
_ATTENTION = re.compile(r"flash|fmha|attention", re.IGNORECASE)
_BESIDE = 2
"""A weight may be cast between a product and what it reads."""
_BACKWARD = re.compile(r"bwd|backward", re.IGNORECASE)
_REACH = 4
"""Kernels on either side that are asked for a width."""
_PROJECTIONS = 3
"""Queries, keys and values, made by one product before attention."""
_LARGEST_WIDTH = 16384
_WIDTH_STEP = 64
"""Models for tensor cores are as wide as a multiple of this."""
_MUCH = RULES.value("much_width")
Sizes = tuple[int, int, int]


@dataclass(slots=True)
class CompiledModel:
    """Tokens and usual width of a compiled model, and the sizes of its products by ``id`` of the launch."""

    tokens: int
    hidden: int
    products: dict[int, Sizes] = field(default_factory=dict)


def persistent_sizes(model: CompiledModel | None, launch: Launch) -> Sizes | None:
    """m, n and k of a persistent GEMM of a compiled forward or backward; None for all other kernels,
    and where the code shows no tokens."""
    return model.products.get(id(launch)) if model is not None else None


def compiled_model(linked: LinkedTrace) -> CompiledModel | None:
    """The compiled model of a trace with the sizes of all its products."""
    model = _read(linked)
    if model is None:
        return None
    told: dict[tuple[str, tuple[int, ...]], Sizes] = {}
    products = [x for x in linked.launches if _NVJET.match(x.gpu[0].name) and is_compiled(linked, x.op)]
    for launch in products:
        found = _sizes(linked, launch, model)
        if found is not None:
            told.setdefault(_key(launch), found)
            model.products[id(launch)] = found
    for launch in products:
        # The library picks kernel and grid by the shape: the same pair mostly means the same sizes.
        if id(launch) not in model.products and _key(launch) in told:
            model.products[id(launch)] = told[_key(launch)]
    return model


def _key(launch: Launch) -> tuple[str, tuple[int, ...]]:
    return launch.gpu[0].name, tuple(launch.gpu[0].grid())


def is_compiled(linked: LinkedTrace, op: int) -> bool:
    """Whether the operator belongs to a compiled graph that is differentiated: no optimizer does."""
    return any(e.name.startswith("CompiledFunction") for e in linked.chain(op))


def row_width(linked: LinkedTrace, model: CompiledModel | None, launch: Launch) -> float:
    """Elements a row of a compiled row kernel just behind a product, whose result it reads; else zero."""
    event = launch.gpu[0]
    if model is None or not _ROWS.match(event.name) or event.grid()[:1] != (model.tokens,):
        return 0.0
    product = next((x for x in linked.before(launch, _REACH) if _is_product(x)), None)
    sizes = persistent_sizes(model, product) if product is not None else None
    return float(sizes[1]) if sizes else 0.0


def _read(linked: LinkedTrace) -> CompiledModel | None:
    """Tokens by the row kernels, the usual width by the point-wise kernels right beside products."""
    rows = Counter(
        event.grid()[0]
        for event in (x.gpu[0] for x in linked.launches)
        if event.name.startswith("triton_per_fused") and event.grid()
    )
    if not rows:
        return None
    tokens = rows.most_common(1)[0][0]
    streamed: Counter[int] = Counter()
    for launch in filter(_is_product, linked.launches):
        for other in (*linked.before(launch, _BESIDE), *linked.after(launch, _BESIDE)):
            width = elements_by_grid(other.gpu[0]) / tokens
            if _POINTS.match(other.gpu[0].name) and _is_width(width):
                streamed[int(width)] += int(width)
    # Feed-forward layers are wider than the rest: of the widths that carry much, the smallest is
    # the model's. Weights that are cast beside their product are small next to the tokens.
    common = [w for w, total in streamed.items() if total >= _MUCH * max(streamed.values())]
    return CompiledModel(tokens, min(common)) if common else None


def _is_width(width: float) -> bool:
    return width % _WIDTH_STEP == 0 and 0 < width <= _LARGEST_WIDTH


def _sizes(linked: LinkedTrace, launch: Launch, model: CompiledModel) -> Sizes | None:
    if _is_weight_gradient(launch):
        partner = next((x for x in linked.after(launch, _REACH) if _is_product(x)), None)
        product = _sizes(linked, partner, model) if partner is not None else None
        return (product[1], product[2], product[0]) if product else None
    read = _width(linked.before(launch, 2 * _REACH), model, backward=True)
    written = _width(linked.after(launch, _REACH), model, backward=False)
    weight = _weight(linked.before(launch, _REACH), model)
    if weight:
        return model.tokens, weight, model.hidden
    return (model.tokens, written, read) if read and written else None


def _is_product(launch: Launch) -> bool:
    return bool(_NVJET.match(launch.gpu[0].name)) and not _is_weight_gradient(launch)


def _is_weight_gradient(launch: Launch) -> bool:
    """Whether it sums over the tokens: dW = dYᵀ·X."""
    name = _NVJET.match(launch.gpu[0].name)
    return name is not None and name.groups() == ("N", "T")


def _width(launches: list[Launch], model: CompiledModel, *, backward: bool) -> int | None:
    """The width of the matrix that the nearest compiled kernel streams; GEMMs are passed over.

    Before attention's forward and behind its ``backward`` that is queries, keys and values together.
    """
    events = [x.gpu[0] for x in launches]
    for i, event in enumerate(events):
        if _POINTS.match(event.name):
            width = elements_by_grid(event) / model.tokens
            if _is_width(width):
                return int(width)
        if _ROWS.match(event.name):
            by_token = bool(event.grid()) and _is_share(model.tokens, event)
            near = [e for e in events[i : i + _REACH] if _ATTENTION.search(e.name)]
            if not by_token and near:
                whole = bool(_BACKWARD.search(near[0].name)) == backward
                return _PROJECTIONS * model.hidden if whole else model.hidden
            return model.hidden if by_token else None
    return None


def _is_share(tokens: int, event: Event) -> bool:
    """A block a token, or one for a few of them."""
    return event.grid()[0] <= tokens and tokens % event.grid()[0] == 0


def _weight(launches: list[Launch], model: CompiledModel) -> int | None:
    """The other side of a weight that was cast just before: its elements fill no rows of tokens."""
    for event in (x.gpu[0] for x in launches if _POINTS.match(x.gpu[0].name)):
        elements = elements_by_grid(event)
        if not _is_width(elements / model.tokens) and elements % (model.hidden * _WIDTH_STEP) == 0:
            return int(elements // model.hidden)
    return None
