"""The all_to_all of pooled embeddings as two autograd functions: start early, wait late.

Forward: start, (other work), wait. Backward, in reverse: the wait's gradient starts the
exchange of gradients, the start's gradient waits for it. The names are those TorchRec's profiles show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist


@dataclass(slots=True)
class Exchange:
    """Who holds how many pooled columns, and this rank's share of the samples."""

    rank: int
    samples: int
    widths: list[int]
    pending: list[Any] = field(default_factory=list)

    @property
    def sent(self) -> list[int]:
        """Values this rank sends to each rank in the forward pass."""
        return [self.samples * self.widths[self.rank]] * len(self.widths)

    @property
    def received(self) -> list[int]:
        return [self.samples * width for width in self.widths]


def alltoall(send: torch.Tensor, sent: list[int], received: list[int]) -> tuple[torch.Tensor, Any]:
    """Starts an all_to_all of flat tensors; returns the buffer and the handle to wait on."""
    buffer = send.new_empty(sum(received))
    return buffer, dist.all_to_all_single(buffer, send, received, sent, async_op=True)


class All2All_Pooled_Req(torch.autograd.Function):  # type: ignore[misc]  # noqa: N801
    """Sends the pooled columns of the local tables to the ranks that own the samples."""

    @staticmethod
    def forward(ctx: Any, pooled: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange, ctx.shape = exchange, pooled.shape
        buffer, work = alltoall(pooled.view(-1), exchange.sent, exchange.received)
        exchange.pending = [work]
        return buffer

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient, work = ctx.exchange.pending
        work.wait()
        return gradient.view(ctx.shape), None


class All2All_Pooled_Wait(torch.autograd.Function):  # type: ignore[misc]  # noqa: N801
    """Waits, and lays the tables of all ranks side by side for the rank's own samples."""

    @staticmethod
    def forward(ctx: Any, buffer: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        exchange.pending[0].wait()
        parts = buffer.split(exchange.received)
        return torch.cat([p.view(exchange.samples, -1) for p in parts], 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        exchange: Exchange = ctx.exchange
        pieces = grad.split(exchange.widths, 1)
        send = torch.cat([piece.reshape(-1) for piece in pieces])
        gradient, work = alltoall(send, exchange.received, exchange.sent)
        exchange.pending = [gradient, work]
        return send, None  # only its size counts: the start's gradient waits for the real one
