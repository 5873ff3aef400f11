"""TorchRec's DLRM on CPU ranks, as TorchRec 1.8 with torch 2.13 runs it (`stepsight run`).

The same pipeline as on a GPU: the next batch's splits are exchanged while the current batch goes forward, its
lengths and indices while it goes backward; the one after is made by the loader. Operator by operator as a
profile of two ranks shows it (a test compares them). Gradients live in DDP's buckets, whose copies back
are views; a map of used parameters is read instead.
"""

from __future__ import annotations

from dataclasses import replace

from stepsight.program.job import COMPUTE, Collective, Kernel, Op, Wait
from stepsight.tables.plan import DATA_PARALLEL
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.dlrm.exchange import index_exchanges
from stepsight.workload.dlrm.torchrec import TENSOR_OPS, one_by_one, run_on_host
from stepsight.workload.operators.matmuls import bmm
from stepsight.workload.operators.tape import EVALUATE, Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import cat, reshape, split, transpose, unsqueeze, view_operator

INDEX_COMM = "index_comm"
"""Where the next batch's indices travel, next to the current batch's rows and gradients."""
NUMPY = ("aten::resolve_conj", "aten::resolve_neg")
"""What a tensor that becomes a list calls."""
PERMUTE = "fbgemm::permute_2D_sparse_data"
LOOKUP = "fbgemm::split_embedding_codegen_lookup_{}_function_pt2"
LOOKUP_BACKWARD = "torch::autograd::CppNode<SplitLookupFunction_{}_Op_pt2>"
BOUNDS = "fbgemm::bounds_check_indices"


def start_next(tape: Tape, config: DlrmConfig) -> None:
    """The next batch's features by the rank that holds their table, and how many of them go where."""
    bags, words = _own_samples(config)
    _moved(tape, PERMUTE, 8.0 * words + 4.0 * bags, views=("aten::view", "aten::view"))
    run_on_host(tape, *TENSOR_OPS * 3, *NUMPY * 3, "aten::empty", "aten::stack", "aten::flatten")
    splits = Collective(
        "all_to_all", 8.0 * 3 * config.ranks, dtype="int64", name="splits", stream=INDEX_COMM, after=()
    )
    tape.marks["splits"] = _exchange(tape, splits)


def load(tape: Tape, config: DlrmConfig) -> None:
    """The loader makes a KeyedJaggedTensor out of arrays."""
    if config.loader == "none":
        run_on_host(tape, *["aten::to"] * 4)
        return
    features = sum(table.features for table in config.tables)
    bags, words = _own_samples(config)
    for size in (8.0 * words, 4.0 * bags):
        run_on_host(tape, *("aten::lift_fresh", "aten::flatten") * features)
        with tape.op("aten::concat"):
            joined = Kernel.of("concat", read_bytes=size, write_bytes=size, inputs=features)
            tape.call("aten::cat", (), joined)
    run_on_host(tape, "aten::view", "aten::sum", *NUMPY, *["aten::lift_fresh"] * 2, *["aten::to"] * 4)


def receive(tape: Tape, config: DlrmConfig) -> None:
    """The current batch's indices are there: in table order, checked, with offsets."""
    bags, words = _own_tables(config)
    with tape.op("aten::view"):
        tape.wait(Wait(COMPUTE, INDEX_COMM))
    _moved(tape, PERMUTE, 8.0 * words + 4.0 * bags, views=("", "aten::view"))
    run_on_host(tape, "aten::view", "aten::sum", *NUMPY, "aten::view", "aten::to")
    run_on_host(tape, "fbgemm::asynchronous_complete_cumsum", *["aten::to"] * 3)
    _moved(tape, BOUNDS, 4.0 * words)
    run_on_host(tape, "aten::to", "aten::item", "aten::add_", "aten::item", "aten::add_")


def send_next(tape: Tape, config: DlrmConfig) -> None:
    """The next batch's lengths and indices, when its splits are known."""
    with tape.op("aten::view"):
        tape.wait(Wait(COMPUTE, tape.marks["splits"]))
    run_on_host(tape, "aten::numpy_T", *NUMPY, "aten::view", "aten::numpy_T", *NUMPY, *TENSOR_OPS)
    for collective in index_exchanges(config):
        run_on_host(tape, "aten::empty")
        _exchange(tape, replace(collective, stream=INDEX_COMM, after=()))


def vectors(tape: Tape, config: DlrmConfig, x: Tensor, pooled: Tensor) -> Tensor:
    """The pooled columns regrouped by feature, with the dense vector in front."""
    features = sum(table.features for table in config.tables)
    parts = split(tape, pooled, [config.bottom[-1]] * features, 1)
    grouped = reshape(tape, cat(tape, parts, 1), x.shape[0], features, config.bottom[-1])
    return cat(tape, (unsqueeze(tape, x, 1), grouped), 1)


def products(tape: Tape, joined: Tensor) -> Tensor:
    """All pairs of vectors; the two rows of the index are taken out of one tensor."""
    found = bmm(tape, joined, transpose(tape, joined, 1, 2))
    run_on_host(tape, "aten::select", "aten::select")
    return found


def passed(tape: Tape, x: Tensor, name: str, node: str) -> Tensor:
    """An operator that hands its input on, with a node of its own in the backward pass."""
    return view_operator(tape, name, x, x.alias(x.shape, x.strides), lambda grad: grad, node)


def as_run(tape: Tape, config: DlrmConfig) -> list[Op]:
    """The recorded step with TorchRec's own names, and DDP's gradients as views of its buckets."""
    marks = tape.marks
    names = {
        marks["lookup_forward"]: LOOKUP.format(config.sparse_optimizer),
        marks["lookup_backward"]: EVALUATE + LOOKUP_BACKWARD.format(config.sparse_optimizer),
    }
    made: list[Op] = []
    for i, op in enumerate(tape.ops):
        if op.name.startswith("Optimizer.step"):
            used = (Op("aten::select", phase="backward"), Op("aten::item", phase="backward"))
            made += [*used * len(tape.parameters), Op("aten::fill_", phase="optimizer")]
        if not op.name.endswith("copy_bucket_to_grad"):
            made.append(replace(op, name=names.get(i, op.name)))
    return one_by_one(made, config.training.optimizer, tape.parameters)


def _moved(tape: Tape, name: str, size: float, views: tuple[str, str] = ("", "")) -> None:
    """An operator of FBGEMM that reads and writes this many bytes, with views before and after it."""
    run_on_host(tape, *filter(None, views[:1]))
    with tape.op(name):
        tape.call(name, (), Kernel.of("copy_d2d", operator=name.partition("::")[2], bytes=size))
    run_on_host(tape, *filter(None, views[1:]))


def _exchange(tape: Tape, collective: Collective) -> int:
    with tape.op("c10d::alltoall_base_"):
        tape.call("c10d::alltoall_base_", ())
        return tape.communicate(collective)


def _own_samples(config: DlrmConfig) -> tuple[float, float]:
    """Bags and indices of a rank's samples."""
    local = config.batch_per_rank
    return (
        local * sum(table.features for table in config.tables),
        local * sum(table.index_words for table in config.tables),
    )


def _own_tables(config: DlrmConfig) -> tuple[float, float]:
    """Bags and indices of the busiest rank's tables."""
    tables = {table.name: table for table in config.tables}
    held = [
        [tables[s.table] for s in config.plan.on_rank(rank) if s.kind != DATA_PARALLEL]
        for rank in range(config.ranks)
    ]
    return (
        config.batch * max(sum(t.features for t in own) for own in held),
        config.batch * max(sum(t.index_words for t in own) for own in held),
    )
