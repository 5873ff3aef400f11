"""NVIDIA's DLRM example for PyTorch (DeepLearningExamples): joint tables and fused kernels.

All tables of a rank are one matrix that one gather reads. Their gradient is a sparse tensor, which
``torch.optim.SGD`` scales and then adds to the matrix row by row. MLPs are apex's (a GEMM, then bias
and relu in one pass), the dot interaction is one kernel each way. From two GPUs on the bottom MLP runs
on rank 0 for the whole batch, vectors change ranks in one all_to_all that nothing overlaps, and the top
MLP is data-parallel.

The loop waits for the device before every step. Before it waits it fetches the next batch: indices are int64
and lie in pageable memory, so the host's thread stages them (CUDA runtime API, asynchronous transfers of
pageable memory), on a stream of their own. Where a step waits for its gradients earlier, to see whether any
overflowed (autocast with a gradient scaler), only the update overlaps with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from stepsight.program.job import COMM, COMPUTE, HOST, Collective, Job, Kernel, Op, RankProgram, Wait
from stepsight.tables.lookup import INDEX_ADD, Lookup
from stepsight.workload.dlrm import embeddings
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.dlrm.exchange import RankWriter, vectors_exchange
from stepsight.workload.step import captured

COPY = "copy"
"""The stream on which the next batch comes in."""
PADDED_TO = 8
"""The interaction's output is padded to a multiple of this many columns (tensor cores)."""
LOSS_KERNELS, LOSS_BACKWARD_KERNELS = 6, 3
"""Element-wise kernels of binary_cross_entropy_with_logits and of its gradient (ATen, composite)."""


def joint_job(config: DlrmConfig) -> Job:
    """Every rank's program; ranks that hold as many tables still look up different ones."""
    programs = [RankProgram(_Joint(config, rank).program(), f"rank {rank}") for rank in range(config.ranks)]
    return Job.of(programs)


def interaction_columns(config: DlrmConfig) -> int:
    """Inputs of the top MLP, padded."""
    vectors = 1 + len(config.tables)
    raw = config.bottom[-1] + vectors * (vectors - 1) // 2
    return -(-raw // PADDED_TO) * PADDED_TO


@dataclass(slots=True)
class _Joint(RankWriter):
    """One rank's step, operator by operator."""

    def program(self) -> tuple[Op, ...]:
        self._begin()
        first = len(self.ops)
        self._forward()
        self._backward()
        last = len(self.ops)
        self._optimizer()
        self._next_batch()
        self.add("cudaDeviceSynchronize", waits=(Wait(HOST, COMPUTE), Wait(HOST, COPY)))
        if self.config.training.cuda_graph:
            return captured(self.ops, first, last)
        return tuple(self.ops)

    # What the configuration says

    @property
    def _half(self) -> bool:
        return self.config.training.half

    @property
    def _dtype(self) -> str:
        """Of activations, pooled vectors and what is exchanged."""
        return self.config.training.precision if self._half else "fp32"

    @property
    def _size(self) -> int:
        return 2 if self._half else 4

    @property
    def _masters(self) -> bool:
        """apex O2: parameters in half precision with fp32 copies."""
        return self._half and self.config.training.master_weights

    @property
    def _casting(self) -> bool:
        """Autocast: parameters in fp32."""
        return self._half and bool(self.config.training.autocast)

    @property
    def _has_bottom(self) -> bool:
        return self.rank == 0

    @property
    def _lookup(self) -> Lookup:
        return replace(
            embeddings.rank_lookup(self.config, self.config.plan, self.rank, fused=True), update=INDEX_ADD
        )

    @property
    def _columns(self) -> int:
        """Columns that the rank's tables give for every sample of the whole batch."""
        return sum(part.dim for part in self._lookup.tables)

    def _sent(self) -> list[int]:
        widths = embeddings.sent_widths(self.config.plan, self.config.tables)
        widths[0] += self.config.bottom[-1]
        return widths

    # Operators and kernels

    def _pass(self, name: str, read: float, written: float, dtype: str = "") -> Kernel:
        """An element-wise kernel by the bytes it moves."""
        dtype = dtype or self._dtype
        size = {"fp32": 4, "int64": 8}.get(dtype, 2)
        return Kernel.of("elementwise", dtype, operator=name, elements=written / size, read_bytes=read,
                         write_bytes=written)  # fmt: skip

    def _batch_bytes(self) -> dict[str, tuple[int, int]]:
        """A batch on its way to the device, and as the step reads it."""
        config, batch = self.config, self.config.batch
        indices = 8 * batch * len(config.plan.on_rank(self.rank))
        sizes = {"indices": (indices, indices), "target": (4 * batch, 4 * batch)}
        if self._has_bottom:
            sizes["dense"] = (2 * batch * config.features, 4 * batch * config.features)
        return {label: pair for label, pair in sizes.items() if pair[0]}

    def _begin(self) -> None:
        self.add("LearningRateScheduler.step")
        if self.config.training.cuda_graph:  # which reads its inputs from fixed places
            for label, (_, size) in self._batch_bytes().items():
                self.add("aten::copy_", Kernel.of("copy_d2d", "fp32", operator=label, bytes=float(size)))

    def _next_batch(self) -> None:
        """The loader's thread has read the files; this one takes the batch over and copies it in."""
        self.add("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        for label, (size, wide) in self._batch_bytes().items():
            copy = Kernel.of("copy_h2d", "fp32", operator=label, stream=COPY, bytes=float(size))
            self.ops.append(Op("aten::to", (copy,), label=label))
            self.ops.append(Op("cudaMemcpyAsync", host_bytes=2.0 * size, label=label))
            self.add("aten::record_stream")
            if wide > size:
                widened = Kernel.of("elementwise", "fp32", operator="cast", stream=COPY, elements=wide / 4,
                                    read_bytes=size, write_bytes=wide)  # fmt: skip
                self.add("aten::to", widened)

    def _forward(self) -> None:
        config, batch, local = self.config, self.config.batch, self.config.batch_per_rank
        dim, vectors = config.bottom[-1], 1 + len(config.tables)
        if self._has_bottom:
            self._casts(self._layers("bottom"))
            self._mlp("bottom", batch)
            if self._masters:  # apex returns a module's output as fp32, which is cast back
                values = batch * dim
                self.add("aten::to", self._pass("cast", 2 * values, 4 * values, "fp32"))
                self.add("aten::to", self._pass("cast", 4 * values, 2 * values))
        if self._columns:
            self._gather(batch)
        if config.ranks > 1:
            for _ in range(config.ranks):
                self.add("aten::empty")  # a buffer for each rank's vectors
            self.add("aten::split_with_sizes")
            self._exchange(backward=False)
            joined = self._size * local * vectors * dim
            concat = Kernel.of("concat", self._dtype, read_bytes=joined, write_bytes=joined,
                               inputs=config.ranks)  # fmt: skip
            self.add("aten::cat", concat)
        else:
            joined = self._size * batch * vectors * dim
            self.add("aten::cat", Kernel.of("concat", self._dtype, read_bytes=joined, write_bytes=joined,
                                             inputs=2))  # fmt: skip
        out = self._size * local * interaction_columns(config)
        self.add("DotBasedInteract", self._pass("dot_interaction", self._size * local * vectors * dim, out))
        self._casts(self._layers("top"))
        self._mlp("top", local)
        k, n = self._layers("top")[-1]
        self.add("aten::linear", self.gemm("linear", local, n, k))
        small = self._pass("loss", 8 * local, 4 * local, "fp32")
        self.add("aten::binary_cross_entropy_with_logits", *[small] * LOSS_KERNELS)

    def _backward(self) -> None:
        self.phase = "backward"
        config, batch, local = self.config, self.config.batch, self.config.batch_per_rank
        dim, vectors = config.bottom[-1], 1 + len(config.tables)
        small = self._pass("loss_backward", 8 * local, 4 * local, "fp32")
        self.add("aten::ones_like", self._pass("fill", 0, 4, "fp32"))
        self.add("BinaryCrossEntropyWithLogitsBackward0", *[small] * LOSS_BACKWARD_KERNELS)
        k, n = self._layers("top")[-1]
        self.add("AddmmBackward0", self.gemm("dgrad", local, k, n), self.gemm("wgrad", n, k, local),
                  Kernel.of("reduce", self._dtype, operator="sum", rows=n, cols=local))  # fmt: skip
        self._mlp_backward("top", local)
        self._gradient_casts(self._layers("top"))
        reduced = self._reduce() if config.ranks > 1 else None
        grad = self._size * local * vectors * dim
        out = self._size * local * interaction_columns(config)
        self.add("DotBasedInteractBackward", self._pass("dot_interaction_backward", grad + out,
                                                         grad + self._size * local * dim))  # fmt: skip
        if config.ranks > 1:
            # The bottom MLP's vector was read twice: its second gradient is put into zeros and added.
            self.add("SelectBackward0", Kernel.of("fill", self._dtype, bytes=grad),
                      Kernel.of("copy_d2d", self._dtype, bytes=self._size * local * dim))  # fmt: skip
            self.add("aten::add", self._pass("add", 2 * grad, grad))
            self.add("aten::split_with_sizes")
            for width in self._sent():  # each rank's part of the gradient is made contiguous by itself
                part = self._size * local * width
                self.add("aten::contiguous", self._pass("copy", part, part))
            self._exchange(backward=True)
        else:
            self.add("aten::add", self._pass("add", 2 * self._size * batch * dim, self._size * batch * dim))
        if self._columns:
            self._scatter_gradient(batch)
        if self._has_bottom:
            if self._masters:
                values = batch * dim
                self.add("ToCopyBackward0", self._pass("cast", 2 * values, 4 * values, "fp32"))
                self.add("ToCopyBackward0", self._pass("cast", 4 * values, 2 * values))
            self._mlp_backward("bottom", batch)
            self._gradient_casts(self._layers("bottom"))
        if reduced is not None:
            self._unflatten(reduced)

    def _optimizer(self) -> None:
        """The fused update of the MLPs; scaling of the sparse gradient, then rows added one by one."""
        self.phase = "optimizer"
        config = self.config
        layers = self._layers("top") + (self._layers("bottom") if self._has_bottom else [])
        elements = sum(k * n + n for k, n in layers)
        read, written = 8, 6 if self._masters else 4
        if self._masters:  # gradients to those of the fp32 copies, with a look at overflows
            copied = self._pass("unscale", 2 * elements, 4 * elements, "fp32")
            self.add("apex::multi_tensor_scale", Kernel.of("fill", "fp32", bytes=4.0), copied)
        update = Kernel.of("optimizer", "fp32", operator="fused_sgd", elements=elements,
                           read_bytes=read * elements, write_bytes=written * elements,
                           tensors=2 * len(layers))  # fmt: skip
        if self._casting:
            check = self._pass("unscale", 4 * elements, 4 * elements, "fp32")
            self.add("aten::_amp_foreach_non_finite_check_and_unscale_", check)
            # GradScaler.step reads whether anything overflowed: the host waits for the gradients.
            self.add("aten::item", Kernel.of("copy_d2h", operator="found_inf", bytes=4.0),
                      waits=(Wait(HOST, COMPUTE),))  # fmt: skip
        self.add("Optimizer.step#FusedSGD.step", update)
        if not self._columns:
            return
        values = 4 * config.batch * self._columns
        if self._casting:
            check = self._pass("unscale", values, values, "fp32")
            self.add("aten::_amp_foreach_non_finite_check_and_unscale_", check)
        scaled = self._pass("mul", values, values, "fp32")
        rows = Kernel("embedding_backward", dtype="fp32", operator="index_add", lookup=self._lookup)
        self.add("Optimizer.step#SGD.step", scaled, rows)

    # Parts

    def _layers(self, which: str) -> list[tuple[int, int]]:
        """(inputs, outputs) of every layer."""
        sizes = (
            (self.config.features, *self.config.bottom)
            if which == "bottom"
            else (interaction_columns(self.config), *self.config.top)
        )
        return list(pairwise(sizes))

    def _fused_layers(self, which: str) -> list[tuple[int, int]]:
        """Those of apex's MLP: the top's last layer is a plain linear."""
        layers = self._layers(which)
        return layers if which == "bottom" else layers[:-1]

    def _casts(self, layers: Sequence[tuple[int, int]]) -> None:
        """Autocast brings every parameter to half precision once per step; apex O2 holds them so."""
        if not self._casting:
            return
        for k, n in layers:
            self.add("aten::to", self._pass("cast", 4 * k * n, 2 * k * n), self._pass("cast", 4 * n, 2 * n))

    def _gradient_casts(self, layers: Sequence[tuple[int, int]]) -> None:
        """Autograd returns gradients in the type of their parameters."""
        if not self._casting:
            return
        for k, n in layers:
            kernels = [self._pass("cast", 2 * size, 4 * size, "fp32") for size in (k * n, n)]
            self.add("torch::autograd::AccumulateGrad", *kernels)

    def _mlp(self, which: str, batch: int) -> None:
        """apex's MLP: with relu, bias and activation are a kernel of their own (apex, mlp_cuda.cu)."""
        kernels: list[Kernel] = []
        for k, n in self._fused_layers(which):
            size = self._size * batch * n
            kernels += [self.gemm("linear", batch, n, k), self._pass("bias_relu", size, size)]
        self.add("MlpFunction", *kernels)

    def _mlp_backward(self, which: str, batch: int) -> None:
        """From the last layer: relu and bias in one pass, then the two products."""
        kernels: list[Kernel] = []
        for i, (k, n) in reversed(list(enumerate(self._fused_layers(which)))):
            size = self._size * batch * n
            kernels.append(self._pass("relu_bias_backward", 2 * size, size))
            if i or which == "top":
                kernels.append(self.gemm("dgrad", batch, k, n))
            kernels.append(self.gemm("wgrad", n, k, batch))
        self.add("MlpFunctionBackward", *kernels)

    def _gather(self, batch: int) -> None:
        """Rows as they lie, fp32; half precision leaves the fused gather of one GPU, or is cast after it."""
        lookup = Kernel("embedding", dtype="fp32", operator="gather", lookup=self._lookup)
        tables = len(self._lookup.tables)
        if self.config.ranks == 1:
            self.add("BuckleEmbeddingFusedGatherFunction", lookup)
            return
        size = 8 * batch * tables
        self.add("aten::add", self._pass("add", size, size, "int64"))
        self.add("EmbeddingGatherFunction", lookup)
        if self._half:
            values = batch * self._columns
            self.add("aten::to", self._pass("cast", 4 * values, 2 * values))

    def _scatter_gradient(self, batch: int) -> None:
        """The gradient of the gather: indices and values of a sparse tensor, fp32."""
        values, tables = batch * self._columns, len(self._lookup.tables)
        if self.config.ranks == 1:
            self.add("aten::contiguous", self._pass("copy", self._size * values, self._size * values))
            index = self._pass("offsets", 8 * batch * tables, 8 * batch * tables, "int64")
            widened = self._pass("gradient", self._size * values, 4 * values, "fp32")
            self.add("BuckleEmbeddingFusedGatherFunctionBackward", index, widened)
            return
        if self._half:
            self.add("ToCopyBackward0", self._pass("cast", 2 * values, 4 * values, "fp32"))
        self.add("EmbeddingGatherFunctionBackward", self._pass("gradient", 4 * values, 4 * values, "fp32"))

    def _exchange(self, *, backward: bool) -> None:
        sent = np.asarray(self._sent(), dtype=np.float64) * self.config.batch_per_rank * self._size
        collective = vectors_exchange(
            sent, self._dtype, backward=backward, name="vectors", kind="all_to_allv"
        )
        started = self.add("c10d::alltoall_", collective=collective, waits=(Wait(COMM, COMPUTE),))
        self.add("c10d::wait", waits=(Wait(COMPUTE, started),))

    def _reduce(self) -> int:
        """apex's DDP: all gradients of the top MLP in one flat buffer."""
        size = float(self._reduced_bytes)
        self.add("apex::flatten", self._pass("flatten", size, size))
        return self.add("c10d::allreduce_", collective=Collective("all_reduce", size, name="top MLP"),
                         waits=(Wait(COMM, COMPUTE),))  # fmt: skip

    def _unflatten(self, started: int) -> None:
        size = float(self._reduced_bytes)
        self.add("apex::unflatten", self._pass("unflatten", 2 * size, size), waits=(Wait(COMPUTE, started),))

    @property
    def _reduced_bytes(self) -> int:
        return (2 if self._masters else 4) * sum(k * n + n for k, n in self._layers("top"))
