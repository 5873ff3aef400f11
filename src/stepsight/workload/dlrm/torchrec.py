"""TorchRec's DLRM example as its trace shows it: KeyedJaggedTensor host work and the sparse-dist pipeline.

One step works on three batches. The next but one is made by the loader and copied in on a stream of its
own; after the forward pass the next one's indices are exchanged (splits first, for which the host waits,
then lengths and values); the current one is trained. Read off one step of a profiler trace (8 V100, 26
features, torch 1.x and torchrec of 2023) operator by operator; counts that go with the features are by
feature. The dense arch runs before the lookup, so nothing overlaps the exchange of pooled rows; the
interaction's indices are copied from the host in every step, for which it waits; the dense optimizer
updates parameters one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepsight.program.job import COMM, Collective, Kernel, Op, Wait
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.dlrm.exchange import index_exchanges
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor

DATA_DIST = "data_dist"
"""The pipeline's own stream."""
FEATURE_OPS = ("aten::lift_fresh", "aten::slice", "aten::fill_")
"""Of the loader, once a feature; then ``FLATTEN_OPS`` once more each."""
FLATTEN_OPS = ("aten::lift_fresh", "aten::flatten")
TENSOR_OPS = ("aten::empty", "aten::to", "aten::lift_fresh", "aten::detach_")
"""What makes a tensor of a list."""
BATCH_TENSORS = 5
"""Dense features, labels, values, lengths, offsets: pinned, copied, and kept for their stream."""
UPDATES = {
    "sgd": ("aten::add_",),
    "adagrad": ("aten::addcmul_", "aten::sqrt", "aten::add_", "aten::addcdiv_"),
    "adam": ("aten::mul_", "aten::add_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::add_",
             "aten::addcdiv_"),
}  # fmt: skip
"""Kernels of the optimizers' loops over parameters, each an operator of its own."""


def load_next(tape: Tape, config: DlrmConfig) -> None:
    """The loader makes a batch in the training process: a KeyedJaggedTensor out of arrays."""
    if config.loader == "none":
        return
    features = sum(table.features for table in config.tables)
    run_on_host(tape, *FEATURE_OPS * features)
    run_on_host(tape, *TENSOR_OPS * 3, "aten::concat", "aten::cumsum", "aten::concat", "aten::cumsum")
    run_on_host(tape, *FLATTEN_OPS * features)
    samples = config.batch_per_rank
    words = samples * sum(table.index_words for table in config.tables)
    mapped = config.loader == "mapped"
    _host_work(tape, "aten::concat", (28.0 if mapped else 16.0) * words, words if mapped else 0.0)
    run_on_host(tape, *["aten::pin_memory"] * (BATCH_TENSORS - 1))
    pinned = 8.0 * words + samples * (4.0 * (config.features + 1) + 8.0 * features)
    _host_work(tape, "aten::pin_memory", 2 * pinned)


def keep_for_stream(tape: Tape) -> None:
    run_on_host(tape, *["aten::record_stream"] * BATCH_TENSORS)


def before_lookup(tape: Tape, config: DlrmConfig) -> None:
    """The received indices in table order; their sizes are read, so the host waits."""
    moved = config.batch * sum(t.lookups for t in config.tables) / config.ranks
    with tape.op("fbgemm::permute_2D_sparse_data"):
        tape.launch(*_permute(moved, "compute"))
    _read(tape, "compute", float(8 * config.ranks))
    run_on_host(tape, "aten::view", "aten::view", *["aten::record_stream"] * 4)
    with tape.op("fbgemm::asynchronous_complete_cumsum"):
        tape.launch(*[_small("cumsum", "compute")] * 3)
    with tape.op("fbgemm::bounds_check_indices"):
        tape.launch(*[_small("bounds_check", "compute")] * 2)
    run_on_host(tape, "aten::to", "aten::to", "aten::view", "aten::empty", "aten::view", "aten::empty")


def distribute_next(tape: Tape, config: DlrmConfig) -> None:
    """The next batch's indices to the ranks that hold the tables, on the pipeline's own stream."""
    local = config.batch_per_rank * sum(t.lookups for t in config.tables)
    keep_for_stream(tape)
    with tape.op("fbgemm::permute_2D_sparse_data"):
        tape.launch(*_permute(local, DATA_DIST))
    run_on_host(tape, "aten::view", *["aten::slice"] * 4)
    for _ in range(3):
        run_on_host(tape, *TENSOR_OPS)
        _read(tape, DATA_DIST, 8.0 * len(config.tables))
    run_on_host(tape, "aten::stack", "aten::flatten", "aten::empty")
    lengths, values = index_exchanges(config)
    splits = Collective(
        "all_to_all", 8.0 * 2 * config.ranks, dtype="int64", name="splits", after=(DATA_DIST,)
    )
    _exchange(tape, splits)
    _read(tape, DATA_DIST, 8.0 * config.ranks, after=len(tape.ops) - 1)
    run_on_host(tape, *TENSOR_OPS)
    for collective in (lengths, values):
        run_on_host(tape, "aten::empty")
        _exchange(tape, replace(collective, after=(DATA_DIST,)))


def index_from_host(tape: Tape, pairs: int) -> None:
    """The interaction's two index tensors come from the host, which waits for the copies."""
    for _ in range(2):
        with tape.op("aten::copy_"):
            tape.launch(Kernel.of("copy_h2d", "int64", operator="index", bytes=8.0 * pairs))
            tape.block_host()


def one_by_one(ops: Sequence[Op], optimizer: str, parameters: Sequence[Tensor]) -> list[Op]:
    """The dense optimizer as a loop over parameters."""
    made: list[Op] = []
    for op in ops:
        if not op.name.startswith("Optimizer.step"):
            made.append(op)
            continue
        for p in parameters:
            if optimizer != "sgd":
                made += [Op("aten::add_", phase="optimizer"), Op("aten::item", phase="optimizer")]
            made += [Op(name, (_update(p, name),), phase="optimizer") for name in UPDATES.get(optimizer, ())]
    return made


def _update(p: Tensor, name: str) -> Kernel:
    reads = 3 if name.startswith("aten::addc") else 1 if name == "aten::sqrt" else 2
    return Kernel.of("elementwise", "fp32", operator=name.removeprefix("aten::"), elements=p.elements,
                     read_bytes=reads * p.bytes, write_bytes=p.bytes)  # fmt: skip


def run_on_host(tape: Tape, *names: str) -> None:
    """Operators that launch nothing."""
    for name in names:
        with tape.op(name):
            pass


def _host_work(tape: Tape, name: str, size: float, divisions: float = 0.0) -> None:
    """An operator that launches nothing and works on this many bytes with the host's own thread."""
    run_on_host(tape, name)
    tape.ops[-1] = replace(tape.ops[-1], host_bytes=size, host_divisions=divisions)


def _small(name: str, stream: str) -> Kernel:
    return Kernel.of("elementwise", "int64", operator=name, stream=stream, elements=64, read_bytes=512,
                     write_bytes=512)  # fmt: skip


def _permute(lookups: float, stream: str) -> list[Kernel]:
    """Lengths and indices in another order: four small kernels for offsets, three that move data."""
    size = 8.0 * lookups
    moved = Kernel.of("elementwise", "int64", operator="permute", stream=stream, elements=lookups,
                      read_bytes=size, write_bytes=size)  # fmt: skip
    return [*[_small("permute_offsets", stream)] * 6, moved]


def _read(tape: Tape, stream: str, size: float, after: int | None = None) -> None:
    """Sizes go to the host, which waits for them."""
    with tape.op("aten::copy_"):
        if after is not None:
            tape.wait(Wait(stream, after))
        tape.launch(Kernel.of("copy_d2h", "int64", operator="sizes", stream=stream, bytes=size))
        tape.block_host()


def _exchange(tape: Tape, collective: Collective) -> None:
    run_on_host(tape, "record_param_comms")
    with tape.op("nccl:all_to_all"):
        tape.communicate(collective, Wait(COMM, DATA_DIST))
