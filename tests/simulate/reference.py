"""The slow, obvious way to time a job: one event after another, nothing vectorised.

Every rank is a little machine with a program counter, a host clock and a clock per
stream. Whoever can go on goes on; a rank at a collective stands until its whole set is
there. It shares no code with the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from stepsight.program.job import HOST, Collective, Job, Kernel, Op

KernelTime = Callable[[int, Kernel], float]
CollectiveTime = Callable[[int, Collective], float]
HostTime = Callable[[Op], tuple[float, float, float, float, float]]


def late_of(collective: Collective) -> float:
    """How late ranks outside the job come to a collective of these tests, which has it in its name."""
    return float(collective.name or 0.0)


class Machine:
    def __init__(self, rank: int, start_us: float) -> None:
        self.rank, self.pc, self.host = rank, 0, start_us
        self.start_us = start_us
        self.stream: dict[str, float] = {}
        self.op_end: dict[int, float] = {}
        self.calls: dict[str, int] = {}
        self.at: tuple[str, int] | None = None
        self.ready = 0.0

    def clock(self, name: str) -> float:
        return self.stream.get(name, self.start_us)


def finish_times(
    job: Job, kernel_us: KernelTime, collective_us: CollectiveTime, host_us: HostTime,
    *, launch_us: float = 0.0, gap_us: float = 0.0, synchronous: bool = False,
) -> list[float]:  # fmt: skip
    starts = job.start_us or (0.0,) * job.ranks
    machines = [Machine(r, starts[r]) for r in range(job.ranks)]
    ops = [job.programs[p].ops for p in job.program_of_rank]
    while True:
        moved = False
        for m in machines:
            while m.at is None and m.pc < len(ops[m.rank]):
                _step(m, ops[m.rank], kernel_us, host_us, launch_us, gap_us, synchronous)
                moved = True
        for name, sets in job.groups.items():
            for group in sets:
                members = [machines[r] for r in group.ranks]
                keys = {m.at for m in members}
                if len(keys) == 1 and (key := keys.pop()) is not None and key[0] == name:
                    calls = [ops[m.rank][m.pc].collective for m in members]
                    begin = max(m.ready + late_of(c) for m, c in zip(members, calls, strict=True))
                    times = [collective_us(m.rank, c) for m, c in zip(members, calls, strict=True) if c]
                    if not calls[0].kind.startswith("all_to_all"):
                        times = [max(times)] * len(times)
                    for m, c, t in zip(members, calls, times, strict=True):
                        m.stream[c.stream] = m.op_end[m.pc] = begin + t
                        _finish_op(m, ops[m.rank][m.pc], host_us, synchronous)
                        m.at = None
                    moved = True
        if all(m.pc >= len(ops[m.rank]) for m in machines):
            return [max([m.host, *m.stream.values()]) for m in machines]
        if not moved:
            raise RuntimeError("deadlock")


def _step(m, ops, kernel_us, host_us, launch_us, gap_us, synchronous):
    op = ops[m.pc]
    t1, t2, _, t4, t5 = host_us(op)
    m.host += t1
    for wait in op.waits:
        until = m.clock(wait.on) if isinstance(wait.on, str) else m.op_end.get(wait.on, m.start_us)
        if wait.waiter == HOST or (
            synchronous and wait.waiter not in {o.collective.stream for o in ops if o.collective}
        ):
            m.host = max(m.host, until)
        else:
            m.stream[wait.waiter] = max(m.clock(wait.waiter), until)
    first = True
    for k in op.kernels:
        m.host += (t2 if first else t5) + t4
        first = False
        start = max(m.clock(k.stream), m.host + launch_us)
        if synchronous:
            start = m.host
        end = start + kernel_us(m.rank, k)
        m.op_end[m.pc] = end
        m.stream[k.stream] = end if synchronous else end + gap_us
        if synchronous:
            m.host = end
    if op.collective:
        c = op.collective
        m.host += (t2 if first else t5) + t4
        m.ready = max([m.host + launch_us, m.clock(c.stream), *(m.clock(s) for s in c.after)])
        n = m.calls.get(c.group, 0)
        m.calls[c.group] = n + 1
        m.at = (c.group, n)
        return
    _finish_op(m, op, host_us, synchronous)


def _finish_op(m, op, host_us, synchronous):
    _, _, t3, _, t5 = host_us(op)
    if op.blocks_host and (op.kernels or op.collective) and not synchronous:
        m.host = max(m.host, m.op_end[m.pc])
    m.host += t3 if (op.kernels or op.collective) else t5
    m.pc += 1
