"""A predicted step as Chakra traces, one ``.et`` file per rank, for ASTRA-sim and its like."""

from __future__ import annotations

from pathlib import Path

from stepsight.documents import write_whole
from stepsight.kernels.families import FAMILIES
from stepsight.program.job import HOST, Collective, Kernel
from stepsight.report.chakra_file import COLL, COLLECTIVES, COMP, ChakraNode, Value, write_chakra
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.timeline import RankTimes, Timeline

_KINDS = {
    "all_reduce": "ALL_REDUCE", "all_to_all": "ALL_TO_ALL", "all_to_allv": "ALL_TO_ALL",
    "all_gather": "ALL_GATHER", "reduce_scatter": "REDUCE_SCATTER", "broadcast": "BROADCAST",
    "reduce": "REDUCE", "barrier": "BARRIER", "send_recv": "BROADCAST",
}  # fmt: skip


def export_chakra(timeline: Timeline, folder: Path, stem: str = "step") -> list[Path]:
    """Write ``stem.<rank>.et`` for every rank; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank in range(timeline.ranks):
        path = folder / f"{stem}.{rank}.et"
        metadata: dict[str, Value] = {"schema": "stepsight", "rank": rank, "ranks": timeline.ranks}
        write_whole(path, write_chakra(metadata, rank_nodes(timeline.rank(rank))))
        written.append(path)
    return written


def rank_nodes(times: RankTimes) -> list[ChakraNode]:
    """Host operators, kernels and collectives of one rank with their dependencies.

    Host operators follow each other by control; a launch depends on its operator and on the
    launch before it on its stream by control, and on what its operator waits for by data.
    """
    nodes: list[ChakraNode] = []
    last_of_op: dict[int, int] = {}
    last_on_stream: dict[str, int] = {}
    launch, host = 0, -1
    zero = times.window_us[0]
    for index, op in enumerate(times.program.ops):
        awaited = [_awaited(w.on, last_of_op, last_on_stream) for w in op.waits if w.waiter == HOST]
        node = len(nodes)
        start, end = float(times.op_start_us[index]), float(times.op_end_us[index])
        nodes.append(
            ChakraNode(
                node,
                op.name,
                COMP,
                (host,) if host >= 0 else (),
                tuple(a for a in awaited if a is not None),
                _whole(start - zero),
                _whole(end - start),
                {"is_cpu_op": True, "phase": op.phase},
            )
        )
        host = node
        for item in launches_of(op):
            waits = [w for w in op.waits if w.waiter == item.stream]
            data = [_awaited(w.on, last_of_op, last_on_stream) for w in waits]
            control = (node, last_on_stream[item.stream]) if item.stream in last_on_stream else (node,)
            number = len(nodes)
            begin, finish = float(times.begin_us[launch]), float(times.end_us[launch])
            nodes.append(
                ChakraNode(
                    number,
                    item.label or op.name,
                    COLL if isinstance(item, Collective) else COMP,
                    control,
                    tuple(d for d in data if d is not None),
                    _whole(begin - zero),
                    _whole(finish - begin),
                    _attributes(item),
                )
            )
            last_on_stream[item.stream] = number
            last_of_op[index] = number
            launch += 1
    return nodes


def _awaited(on: int | str, last_of_op: dict[int, int], last_on_stream: dict[str, int]) -> int | None:
    return last_of_op.get(on) if isinstance(on, int) else last_on_stream.get(on)


def _whole(us: float) -> int:
    return max(0, round(us))


def _attributes(item: Kernel | Collective) -> dict[str, Value]:
    if isinstance(item, Collective):
        return {
            "is_cpu_op": False, "comm_type": COLLECTIVES.index(_KINDS[item.kind]),
            "comm_size": round(item.bytes), "pg_name": item.group, "stream": item.stream,
        }  # fmt: skip
    return {
        "is_cpu_op": False, "num_ops": round(_flops(item)), "tensor_size": round(_bytes(item)),
        "family": item.family, "stream": item.stream,
    }  # fmt: skip


def _flops(kernel: Kernel) -> float:
    dims = dict(kernel.dims)
    if kernel.family == "gemm":
        return 2 * dims.get("batch", 1.0) * dims.get("m", 1.0) * dims.get("n", 1.0) * dims.get("k", 1.0)
    return dims.get("elements", dims.get("flops", 0.0))


def _bytes(kernel: Kernel) -> float:
    dims = dict(kernel.dims)
    known = FAMILIES.get(kernel.family)
    if known is None or not dims:
        return 0.0
    return dims.get("read_bytes", 0.0) + dims.get("write_bytes", dims.get("bytes", 0.0))
