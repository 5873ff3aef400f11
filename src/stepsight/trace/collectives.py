"""From a NCCL kernel and the operator around it to a `Collective`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stepsight.dtypes import dtype_bytes
from stepsight.program.aten.call import TensorFact
from stepsight.trace.events import Event
from stepsight.trace.launches import Launch
from stepsight.trace.link import LinkedTrace
from stepsight.trace.operators import dtype_of, tensors_of

_BY_NAME = (
    ("all_to_all", re.compile(r"all_?to_?all|alltoall", re.I)),
    ("all_reduce", re.compile(r"all_?reduce", re.I)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all_gather", re.compile(r"all_?gather", re.I)),
    ("broadcast", re.compile(r"broadcast|_bcast", re.I)),
    ("send_recv", re.compile(r"send|recv", re.I)),
    ("barrier", re.compile(r"barrier", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
)
WORLD = "world"


@dataclass(frozen=True, slots=True)
class TracedCollective:
    """What a trace says of one collective call.

    ``bytes`` counts as `Collective.bytes` does; None where the trace holds no sizes.
    ``members`` are the ranks of its group, where the call lists them all.
    """

    kind: str
    bytes: float | None
    dtype: str
    group: str
    group_size: int | None
    members: tuple[int, ...] = ()


def collective_of(linked: LinkedTrace, launch: Launch, world: int) -> TracedCollective:
    """Kind, bytes and group of the collective that a NCCL kernel launch belongs to; the whole world where the
    call names no group."""
    kernel = launch.gpu[0]
    chain = list(linked.chain(launch.op))
    stated = next((e for e in (kernel, *chain) if e.args.collective), None)
    named = [stated.args.collective] if stated else []
    named += [e.name for e in chain if e.name.startswith(("nccl:", "c10d::", "_c10d", "c10d_"))]
    # NCCL has no all_to_all kernel: it shows as grouped sends and receives.
    kinds = (kind for name in (*named, kernel.name) for kind, held in _BY_NAME if held.search(name))
    kind = next(kinds, "send_recv")
    size = (stated.args.group_size if stated else -1) or -1
    group_size = size if size > 0 else None
    if stated and stated.args.in_elements >= 0:
        return _stated(stated, kind, group_size, world)
    own = group_size or _stated_group_size(kind, chain)
    found = _from_shapes(kind, _inputs(chain, kind), own or world, kernel)
    return replace(found, group_size=own)


def _stated_group_size(kind: str, chain: list[Event]) -> int | None:
    """The size of the group by the two buffers of an all_gather or reduce_scatter, where both are listed."""
    if kind not in ("all_gather", "reduce_scatter"):
        return None
    for event in chain:
        sizes = sorted(t.elements for t in tensors_of(event) if t.elements > 0)
        if len(sizes) == 2 and sizes[1] > sizes[0] and sizes[1] % sizes[0] == 0:
            return sizes[1] // sizes[0]
    return None


def _stated(event: Event, kind: str, group_size: int | None, world: int) -> TracedCollective:
    args = event.args
    dtype = dtype_of(args.dtype)
    elements = args.in_elements if kind == "all_to_all" else max(args.in_elements, args.out_elements)
    group = WORLD if group_size == world else args.group_name or WORLD
    listed = tuple(int(x) for x in re.findall(r"\d+", args.group_ranks))
    members = listed if len(listed) == group_size else ()  # long lists are cut short
    return TracedCollective(kind, float(elements * dtype_bytes(dtype)), dtype, group, group_size, members)


def _inputs(chain: list[Event], kind: str) -> list[TensorFact]:
    """The tensors of the innermost call that lists any; of a gather or scatter the one that lists both."""
    listed = [found for event in chain if (found := tensors_of(event))]
    if kind in ("all_gather", "reduce_scatter"):
        listed.sort(key=lambda found: len(found) != 2)
    return listed[0] if listed else []


def _from_shapes(kind: str, tensors: list[TensorFact], world: int, kernel: Event) -> TracedCollective:
    if not tensors:
        return TracedCollective(kind, None, _dtype_from_kernel(kernel.name), WORLD, None)
    total = float(sum(t.bytes for t in tensors))
    largest = float(max(t.bytes for t in tensors))
    if kind == "all_gather":
        # Some versions list only the share, some the share and the whole.
        size = largest if len(tensors) > 1 else total * world
    elif kind in ("all_to_all", "reduce_scatter"):
        size = largest
    else:
        size = total
    return TracedCollective(kind, size, tensors[0].dtype, WORLD, None)


def _dtype_from_kernel(name: str) -> str:
    marks = {"bf16": "bf16", "f16": "fp16", "half": "fp16", "uint8": "uint8", "int8": "int8"}
    return next((dtype for mark, dtype in marks.items() if mark in name), "fp32")
