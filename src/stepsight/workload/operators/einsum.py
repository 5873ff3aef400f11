"""torch.einsum of two tensors: permuted into one batched matrix product and back."""

from __future__ import annotations

from math import prod

from stepsight.workload.operators.matmuls import bmm
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import permute, reshape, unsqueeze, view


def einsum(tape: Tape, equation: str, a: Tensor, b: Tensor) -> Tensor:
    """As torch does it: labels in the order of the output, then summed ones by alphabet."""
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    labels = out + "".join(sorted(set(left + right) - set(out)))
    with tape.op("aten::einsum", (a, b)):
        return _product(
            tape, labels, len(out), _aligned(tape, a, left, labels), _aligned(tape, b, right, labels)
        )


def _aligned(tape: Tape, x: Tensor, own: str, labels: str) -> Tensor:
    """One dimension per label, of size 1 where the tensor does not have it."""
    missing = [label for label in labels if label not in own]
    for _ in missing:
        x = unsqueeze(tape, x, -1)
    have = own + "".join(missing)
    return permute(tape, x, *(have.index(label) for label in labels))


def _product(tape: Tape, labels: str, kept: int, a: Tensor, b: Tensor) -> Tensor:
    rank = len(labels)
    both = [i for i in range(kept) if (a.shape[i] != 1) == (b.shape[i] != 1)]
    left_only = [i for i in range(kept) if a.shape[i] != 1 and b.shape[i] == 1]
    right_only = [i for i in range(kept) if a.shape[i] == 1 and b.shape[i] != 1]
    summed = list(range(kept, rank))
    a_order, b_order = both + left_only + summed + right_only, both + summed + right_only + left_only
    batch = prod(a.shape[i] for i in both)
    m, n = prod(a.shape[i] for i in left_only), prod(b.shape[i] for i in right_only)
    k = prod(a.shape[i] for i in summed)
    left = reshape(tape, permute(tape, a, *a_order), batch, m, k)
    right = reshape(tape, permute(tape, b, *b_order), batch, k, n)
    sizes = [a.shape[i] for i in both + left_only] + [1] * len(summed) + [b.shape[i] for i in right_only]
    result = view(tape, bmm(tape, left, right), *sizes)
    laid = both + left_only + summed + right_only
    result = permute(tape, result, *(laid.index(i) for i in range(rank)))
    return view(tape, result, *result.shape[:kept])
