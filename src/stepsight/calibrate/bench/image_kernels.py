"""The torch calls of image models' kernels: convolutions, pooling, batch norms."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stepsight.calibrate.bench.operands import Operands, PreparedCall


def _conv_operands(m: Operands) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, int]]:
    """Input, weight, gradient of the output, and what the call is told."""
    groups = m.dim("groups")
    settings = {"stride": m.dim("stride"), "padding": int(m.kernel.dim("padding", 0.0)), "groups": groups}
    x = m.tensor(m.dim("batch"), m.dim("c_in"), m.dim("h"), m.dim("w"))
    weight = m.tensor(m.dim("c_out"), m.dim("c_in") // groups, m.dim("kh"), m.dim("kw"))
    grad = torch.nn.functional.conv2d(x, weight, **settings)
    return x, weight, grad, settings


def _conv(m: Operands) -> PreparedCall:
    x, weight, _, settings = _conv_operands(m)
    return PreparedCall(lambda: torch.nn.functional.conv2d(x, weight, **settings), (x,))


def _conv_backward(*, input_gradient: bool) -> Callable[[Operands], PreparedCall]:
    wanted = [input_gradient, not input_gradient, False]

    def build(m: Operands) -> PreparedCall:
        x, weight, grad, s = _conv_operands(m)
        stride, padding, one = [s["stride"]] * 2, [s["padding"]] * 2, [1, 1]
        backward = torch.ops.aten.convolution_backward
        return PreparedCall(
            lambda: backward(
                grad, x, weight, None, stride, padding, one, False, [0, 0], s["groups"], wanted
            ),
            (grad,),
        )  # fmt: skip

    return build


def _pool(m: Operands) -> PreparedCall:
    """A window of 2 × 2: four values read for each one written."""
    side = max(int((m.dim("write_bytes") // 4 / 16) ** 0.5), 1)
    x = m.tensor(1, 16, 2 * side, 2 * side)
    return PreparedCall(lambda: torch.nn.functional.max_pool2d(x, 2), (x,))


def _batch_norm(m: Operands) -> PreparedCall:
    """``rows`` channels of ``cols`` values each."""
    channels = m.dim("rows")
    x, weight, bias = m.tensor(1, channels, m.dim("cols")), m.tensor(channels), m.tensor(channels)
    norm = torch.nn.functional.batch_norm
    return PreparedCall(lambda: norm(x, None, None, weight, bias, True), (x,))


def _batch_norm_backward(m: Operands) -> PreparedCall:
    channels = m.dim("rows")
    x, grad = (m.tensor(1, channels, m.dim("cols")) for _ in range(2))
    weight, mean, invstd = (m.tensor(channels) for _ in range(3))
    backward = torch.ops.aten.native_batch_norm_backward
    return PreparedCall(
        lambda: backward(grad, x, weight, None, None, mean, invstd, True, 1e-5, [True, True, True]), (grad,)
    )


IMAGE_BUILDERS: dict[str, Callable[[Operands], PreparedCall]] = {
    "conv": _conv,
    "conv_dgrad": _conv_backward(input_gradient=True),
    "conv_wgrad": _conv_backward(input_gradient=False),
    "pool": _pool,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
}
