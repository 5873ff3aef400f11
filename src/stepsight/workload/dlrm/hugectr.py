"""HugeCTR's training of a DLRM: fused kernels, half precision, one CUDA graph for the whole step.

Dense layers are GEMMs with bias and activation in their epilogue, in fp16 with fp32 master weights. Small
tables are held by every rank and looked up for its own samples; of the others each rank looks up its shards
for the whole batch, and pooled vectors travel in fp16 by all_to_all while the bottom MLP runs. The low-rank
cross layers of DCN-v2 take one element-wise kernel each besides their two products. Gradients of weights are
not waited for (``async_wgrad``): they run while vectors' gradients travel. Gradients of the dense part are
reduced in fp16 while the rows are updated, over several nodes inside the network (SHARP, as the published
runs set it). The next batch is read and distributed meanwhile and costs the step nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from stepsight.program.job import COMM, COMPUTE, Collective, Job, Kernel, Op, RankProgram, Wait
from stepsight.tables.lookup import Lookup
from stepsight.tables.plan import DATA_PARALLEL
from stepsight.tables.sharders import node_ranks
from stepsight.workload.dlrm import embeddings
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.dlrm.exchange import NODE, PEERS, RankWriter, node_groups, vectors_exchange
from stepsight.workload.step import captured

WORLD = "world"
SPARSE = "sparse"
"""The stream of kernels between two exchanges."""
HALF_BYTES = 2
"""Of activations, weights in products, gradients and what is exchanged."""
FIRST_FEATURES = 16
"""Dense features are padded to a multiple of this many columns (tensor cores take eight; HugeCTR pads)."""


def hugectr_job(config: DlrmConfig) -> Job:
    """Every rank's program."""
    programs = [RankProgram(_Step(config, rank).program(), f"rank {rank}") for rank in range(config.ranks)]
    job, size = Job.of(programs), node_ranks(config.ranks)
    if size == config.ranks:
        return job
    return replace(job, groups={**job.groups, **node_groups(config.ranks, size)})


@dataclass(slots=True)
class _Step(RankWriter):
    """One rank's step; ``later``: gradients of weights that nothing waits for."""

    later: list[tuple[str, Kernel]] = field(default_factory=list)

    def program(self) -> tuple[Op, ...]:
        started = self._forward()
        self._backward(started)
        return captured(self.ops, 0, len(self.ops))

    # What the configuration says

    @property
    def _local(self) -> int:
        return self.config.batch_per_rank

    @property
    def _width(self) -> int:
        """Columns of the dense vector and all tables' vectors side by side."""
        return self.config.bottom[-1] + sum(table.output_columns for table in self.config.tables)

    def _layers(self, which: str) -> list[tuple[int, int]]:
        """(inputs, outputs) of every layer."""
        if which == "bottom":
            padded = -(-self.config.features // FIRST_FEATURES) * FIRST_FEATURES
            return list(pairwise((padded, *self.config.bottom)))
        return list(pairwise((self._top_inputs, *self.config.top)))

    @property
    def _top_inputs(self) -> int:
        if self.config.interaction != "dot":
            return self._width
        vectors = 1 + len(self.config.tables)
        return self.config.bottom[-1] + vectors * (vectors - 1) // 2

    def _lookups(self) -> tuple[Lookup, Lookup]:
        """Of the tables that ranks share out, and of those that every rank holds."""
        whole = embeddings.rank_lookup(self.config, self.config.plan, self.rank, fused=True)
        whole = replace(whole, output_dtype="fp16")
        kinds = [shard.kind == DATA_PARALLEL for shard in self.config.plan.on_rank(self.rank)]
        parts = list(zip(whole.tables, kinds, strict=True))
        shared = replace(whole, tables=tuple(part for part, own in parts if not own))
        return shared, replace(whole, tables=tuple(part for part, own in parts if own))

    # Kernels

    def _pass(self, operator: str, reads: float, writes: float) -> Kernel:
        """An element-wise kernel by the half-precision values that it reads and writes."""
        return Kernel.of("elementwise", self.config.training.precision, operator=operator, elements=writes,
                         read_bytes=HALF_BYTES * reads, write_bytes=HALF_BYTES * writes)  # fmt: skip

    def _forward(self) -> int | None:
        local, width = self._local, self._width
        shared, own = self._lookups()
        lookup = [Kernel("embedding", operator="lookup", lookup=shared)] if shared.tables else []
        self.add("embedding.forward", *lookup)
        started = self._exchange(backward=False) if self.config.ranks > 1 else None
        if own.tables:
            self.add("embedding.forward", Kernel("embedding", operator="lookup", lookup=own))
        self._mlp("bottom")
        pooled = width - self.config.bottom[-1]
        waits = (Wait(COMPUTE, started),) if started is not None else ()
        received = self._received_columns()
        self.add("network.forward", self._pass("reorder", local * received, local * pooled), waits=waits)
        self.add("concat", Kernel.of("concat", "fp16", read_bytes=HALF_BYTES * local * width,
                                      write_bytes=HALF_BYTES * local * width, inputs=2))  # fmt: skip
        self._interact()
        self._mlp("top")
        self.add("loss", self._pass("binary_cross_entropy", 2 * local, local))
        return started

    def _backward(self, exchanged: int | None) -> None:
        self.phase = "backward"
        local, width = self._local, self._width
        self._mlp_backward("top", first=True)
        self._interact_backward()
        pooled = width - self.config.bottom[-1]
        self.add("network.backward", self._pass("reorder", local * pooled, local * self._received_columns()))
        started = self._exchange(backward=True) if self.config.ranks > 1 else None
        self._weight_gradients()
        self._mlp_backward("bottom", first=False)
        self._weight_gradients()
        reduced = self._reduce() if self.config.ranks > 1 else None
        shared, own = self._lookups()
        if shared.tables:
            waits = (Wait(COMPUTE, started),) if started is not None else ()
            update = Kernel("embedding_backward", operator="lookup_backward", lookup=shared)
            self.add("embedding.backward", update, waits=waits)
        if own.tables:
            update = Kernel("embedding_backward", operator="lookup_backward", lookup=own)
            self.add("embedding.backward", update)
        self._optimizer(reduced)

    def _mlp(self, which: str) -> None:
        for k, n in self._layers(which):
            self.add(f"{which}.forward", self.gemm("linear", self._local, n, k))

    def _mlp_backward(self, which: str, *, first: bool) -> None:
        """Each layer's activation gradient is in the epilogue of the product before it."""
        for i, (k, n) in reversed(list(enumerate(self._layers(which)))):
            self.later.append((f"{which}.backward", self.gemm("wgrad", n, k, self._local)))
            if i or first:
                self.add(f"{which}.backward", self.gemm("dgrad", self._local, k, n))

    def _interact(self) -> None:
        local, width, config = self._local, self._width, self.config
        if config.interaction == "dot":
            self.add("interaction.forward", self._pass("dot", local * width, local * self._top_inputs))
        if config.interaction == "dcnv2":
            for _ in range(config.cross_layers):
                self.add("cross.forward", self.gemm("linear", local, config.cross_rank, width),
                          self.gemm("linear", local, width, config.cross_rank),
                          self._pass("cross", 3 * local * width, local * width))  # fmt: skip

    def _interact_backward(self) -> None:
        local, width, config = self._local, self._width, self.config
        if config.interaction == "dot":
            self.add("interaction.backward",
                      self._pass("dot", local * (width + self._top_inputs), local * width))  # fmt: skip
        if config.interaction == "dcnv2":
            for _ in range(config.cross_layers):
                # Gradients of the product and of the first input, then those of both factors.
                self.add("cross.backward", self._pass("cross", 4 * local * width, 2 * local * width),
                          self.gemm("dgrad", local, config.cross_rank, width),
                          self.gemm("dgrad", local, width, config.cross_rank),
                          self._pass("add", 2 * local * width, local * width))  # fmt: skip
                for m, n in ((width, config.cross_rank), (config.cross_rank, width)):
                    self.later.append(("cross.backward", self.gemm("wgrad", m, n, local)))

    def _weight_gradients(self) -> None:
        for name, kernel in self.later:
            self.add(name, kernel)
        self.later.clear()

    # What ranks exchange

    def _sent(self) -> list[int]:
        return embeddings.sent_widths(self.config.plan, self.config.tables)

    def _received_columns(self) -> int:
        """Columns that arrive for one sample: partial sums of row-wise tables arrive from every holder, or
        from every node that holds some."""
        if self.config.ranks == 1:
            return self._width - self.config.bottom[-1]
        per_node = node_ranks(self.config.ranks)
        return sum(self._sent() if per_node == self.config.ranks else self._node_widths(per_node))

    def _exchange(self, *, backward: bool) -> int | None:
        """All to all at once inside a node. Over several nodes in two turns: inside each node, where partial
        sums are added up, and then among the ranks with the same place in their nodes; gradients go back the
        other way (HugeCTR's hierarchical communication)."""
        if not any(self._sent()):
            return None
        per_node = node_ranks(self.config.ranks)
        nodes = self.config.ranks // per_node
        if nodes == 1:
            return self._all_to_all(self._sent(), self.config.batch_per_rank, WORLD, backward=backward)
        first = self.rank // per_node * per_node
        own = self._sent()[first : first + per_node]
        turns = [(own, nodes * self._local, NODE), (self._node_widths(per_node), self._local, PEERS)]
        started = None
        for widths, samples, group in reversed(turns) if backward else turns:
            after = COMPUTE
            if started is not None:
                values = float(nodes * self._local * widths[self.rank // per_node if group == PEERS else 0])
                reorder = replace(self._pass("reorder", values, values), stream=SPARSE)
                self.add("network.turn", reorder, waits=(Wait(SPARSE, started),))
                after = SPARSE
            started = self._all_to_all(widths, samples, group, backward=backward, after=after)
        return started

    def _node_widths(self, per_node: int) -> list[int]:
        """Columns that leave each node for a sample: parts of one table are added up inside it."""
        held: list[dict[tuple[str, tuple[int, int]], int]] = [
            {} for _ in range(self.config.ranks // per_node)
        ]
        for shard in self.config.plan.shards:
            if shard.kind != DATA_PARALLEL:
                features = self.config.table_of_name[shard.table].features
                held[shard.rank // per_node][shard.table, shard.columns] = shard.width * features
        return [sum(widths.values()) for widths in held]

    def _all_to_all(
        self, widths: Sequence[int], samples: int, group: str, *, backward: bool, after: str = COMPUTE
    ) -> int:
        sent = np.asarray(widths, dtype=np.float64) * samples * HALF_BYTES
        collective = vectors_exchange(sent, "fp16", backward=backward, group=group, kind="all_to_allv")
        return self.add("all_to_all", collective=collective, waits=(Wait(COMM, after),))

    def _reduce(self) -> int:
        """Gradients of the dense part and of the tables that every rank holds, in one buffer. Over several
        nodes ranks of a node sum their parts, which go through the network once (NCCL_COLLNET_ENABLE)."""
        rows = sum(
            shard.width * shard.height
            for shard in self.config.plan.on_rank(self.rank)
            if shard.kind == DATA_PARALLEL
        )
        size = float(HALF_BYTES * (self._parameters() + rows))
        per_node = node_ranks(self.config.ranks)
        turns = [("all_reduce", size, WORLD)]
        if per_node < self.config.ranks:
            turns = [("reduce_scatter", size, NODE), ("reduce", size / per_node, PEERS),
                     ("all_gather", size, NODE)]  # fmt: skip
        waits: tuple[Wait, ...] = (Wait(COMM, COMPUTE),)
        for kind, bytes_, group in turns:
            collective = Collective(kind, bytes_, group, dtype="fp16", name="gradients")
            last = self.add("all_reduce", collective=collective, waits=waits)
            waits = ()
        return last

    def _parameters(self) -> int:
        layers: Sequence[tuple[int, int]] = (*self._layers("bottom"), *self._layers("top"))
        crossed = self.config.cross_layers * (2 * self._width * self.config.cross_rank + self._width)
        return sum(k * n + n for k, n in layers) + (crossed if self.config.interaction == "dcnv2" else 0)

    def _optimizer(self, reduced: int | None) -> None:
        """fp32 masters and state are read and written, the half-precision weights written."""
        self.phase = "optimizer"
        elements = float(self._parameters())
        state = {"sgd": 0, "none": 0, "adagrad": 1}.get(self.config.training.optimizer, 2)
        read, written = HALF_BYTES + 4 + 4 * state, HALF_BYTES + 4 + 4 * state
        update = Kernel.of("optimizer", "fp32", operator="fused_update", elements=elements,
                           read_bytes=read * elements, write_bytes=written * elements, tensors=1)  # fmt: skip
        waits = (Wait(COMPUTE, reduced),) if reduced is not None else ()
        self.add("optimizer", update, waits=waits)
