"""How a DLRM joins its dense vector and its embeddings: dot, cat or DCN-v2 cross layers."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.program.aten.movement import fill_kernel
from stepsight.program.job import Kernel
from stepsight.tables.plan import table_kinds
from stepsight.workload.dlrm import torchrec_cpu
from stepsight.workload.dlrm.config import TORCHREC_STACK, DlrmConfig
from stepsight.workload.dlrm.exchange import whole_tables
from stepsight.workload.dlrm.torchrec import index_from_host
from stepsight.workload.operators.matmuls import bmm, linear
from stepsight.workload.operators.pointwise import add, mul
from stepsight.workload.operators.tape import Grads, Tape, operator
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import cat, transpose, view


def interaction_width(config: DlrmConfig) -> int:
    """Inputs of the top MLP."""
    dense = config.bottom[-1]
    if config.interaction == "dot":
        vectors = 1 + len(config.tables)
        return dense + vectors * (vectors - 1) // 2
    return dense + sum(table.output_columns for table in config.tables)


def interact(
    tape: Tape, config: DlrmConfig, x: Tensor, pooled: Tensor, parameters: Sequence[tuple[Tensor, ...]]
) -> Tensor:
    """The top MLP's input from the dense vector and the pooled embeddings of all tables."""
    if config.interaction == "dot":
        return _dot(tape, config, x, pooled, parameters)
    whole = set(table_kinds(config.plan).values()) <= {"table_wise"}
    parts = [pooled] if whole else list(whole_tables(tape, config, pooled).values())
    joined = cat(tape, (x, *parts), 1)
    if config.interaction == "dcnv2":
        return _cross(tape, joined, parameters)
    return joined


def _dot(
    tape: Tape, config: DlrmConfig, x: Tensor, pooled: Tensor, projections: Sequence[tuple[Tensor, ...]]
) -> Tensor:
    """All pairwise products of the dense vector and the tables' vectors, each pair once."""
    dim = config.bottom[-1]
    batch = x.shape[0]
    whole = set(table_kinds(config.plan).values()) <= {"table_wise"}
    if whole and not projections:
        parts = [pooled]
    else:
        odd = (table.name for table in config.tables if table.dim != dim)
        weights = dict(zip(odd, (w for (w,) in projections), strict=True))
        parts = [
            linear(tape, part, weights[name]) if name in weights else part
            for name, part in whole_tables(tape, config, pooled).items()
        ]
    if config.stack == TORCHREC_STACK and tape.device != "cuda":
        products = torchrec_cpu.products(tape, torchrec_cpu.vectors(tape, config, x, cat_all(tape, parts)))
        return cat(tape, (x, lower_triangle(tape, products)), 1)
    vectors = view(tape, cat(tape, (x, *parts), 1), batch, -1, dim)
    products = bmm(tape, vectors, transpose(tape, vectors, 1, 2))
    from_host = config.stack == TORCHREC_STACK and tape.device == "cuda"
    if from_host:
        index_from_host(tape, products.shape[1] * (products.shape[1] - 1) // 2)
    return cat(tape, (x, lower_triangle(tape, products)), 1)


def cat_all(tape: Tape, parts: Sequence[Tensor]) -> Tensor:
    """Several tensors side by side; one as it is."""
    return cat(tape, parts, 1) if len(parts) > 1 else parts[0]


@operator
def lower_triangle(tape: Tape, products: Tensor) -> Tensor:
    """Entries below the diagonal of each matrix, by an index on the device."""
    batch, size = products.shape[0], products.shape[1]
    pairs = size * (size - 1) // 2
    with tape.op("aten::index", (products,)):
        out = Tensor.new((batch, pairs), products.dtype)
        index = Tensor.new((pairs,), "int64", persistent=True)
        moved = out.bytes
        kernel = Kernel.of("elementwise", out.dtype, operator="index", elements=out.elements,
                           read_bytes=moved + 2 * index.bytes, write_bytes=moved)  # fmt: skip
        tape.call("aten::index", (products, index, index), kernel)

        def rule(grad: Tensor) -> Grads:
            whole = Tensor.new(products.shape, grad.dtype)
            tape.call("aten::new_zeros", (grad,), fill_kernel(whole))
            tape.call(
                "aten::_index_put_impl_", (whole, index, index, grad), *_put_kernels(tape, whole, index, grad)
            )
            return (whole,)

        tape.record("IndexBackward0", (products,), (out,), rule)
    return out


def _put_kernels(tape: Tape, whole: Tensor, index: Tensor, grad: Tensor) -> list[Kernel]:
    """Accumulating at indices: on a GPU the linear index is made and sorted first (ATen's index_put_)."""
    batch, pairs = grad.shape
    put = Kernel.of(
        "scatter",
        grad.dtype,
        operator="index_put",
        rows=pairs,
        cols=batch,
        table_rows=whole.elements // batch,
    )
    if tape.device != "cuda":
        return [put]
    arithmetic = Kernel.of(
        "elementwise", "int64", operator="index_arithmetic", elements=pairs, read_bytes=2 * index.bytes,
        write_bytes=index.bytes,
    )  # fmt: skip
    return [*[arithmetic] * 3, Kernel.of("sort", "int64", elements=pairs), put]


def _cross(tape: Tape, x0: Tensor, layers: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """Low-rank cross layers: x ← x0 · (W (V x) + b) + x."""
    x = x0
    for v, w, bias in layers:
        x = add(tape, mul(tape, x0, linear(tape, linear(tape, x, v), w, bias)), x)
    return x
