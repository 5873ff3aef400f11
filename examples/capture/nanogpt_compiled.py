"""A GPT of 124 million parameters after modded-nanogpt: compiled, rotary positions, value embeddings, Muon.

16,384 tokens a rank and step, eleven layers, attention in ten of them. Matrices are stacked, their gradients
reduce-scattered, and each rank orthogonalises its share (Newton-Schulz) before all of them are gathered.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn

WIDTH, HEADS, LAYERS, VOCAB, ROWS, LENGTH = 768, 6, 11, 50304, 8, 2048
WITHOUT_ATTENTION = 6
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


def rotated(x, cosine, sine):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine + b * sine, b * cosine - a * sine), dim=-1)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.values = nn.ModuleList(nn.Embedding(VOCAB, WIDTH) for _ in range(3))
        attention = LAYERS - 1
        self.qkvo = nn.Parameter(
            (torch.randn(-(-4 * attention // world) * world, WIDTH, WIDTH) * 0.02).bfloat16()
        )
        self.mlp = nn.Parameter(
            (torch.randn(-(-2 * LAYERS // world) * world, 4 * WIDTH, WIDTH) * 0.02).bfloat16()
        )
        self.gates = nn.Parameter(torch.zeros(attention, HEADS, 12))
        self.scalars = nn.Parameter(torch.ones(4 * LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens, targets, cosine, sine):
        x = first = norm(self.embed(tokens))
        values = [table(tokens) for table in self.values]
        values = [*values, *[None] * (LAYERS - 1 - 6), *values]
        qkvo, mlp = self.qkvo, self.mlp
        at = 0
        for layer in range(LAYERS):
            x = self.scalars[4 * layer] * x + self.scalars[4 * layer + 1] * first
            if layer != WITHOUT_ATTENTION:
                four = qkvo[4 * at : 4 * at + 4]
                x = x + self.attention(norm(x), four, self.gates[at], values[at], cosine, sine, layer)
                at += 1
            up, down = mlp[2 * layer], mlp[2 * layer + 1]
            x = x + F.relu(norm(x) @ up.t()).square() @ down
        logits = self.head(norm(x))
        logits = 30 * torch.sigmoid(logits / 7.5)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")

    def attention(self, x, four, gate, value, cosine, sine, layer):
        rows, length, _ = x.shape
        q, k, v = F.linear(x, four[:3].flatten(0, 1)).view(rows, length, 3 * HEADS, -1).chunk(3, dim=2)
        q, k = rotated(norm(q), cosine, sine), rotated(norm(k), cosine, sine)
        v = self.scalars[4 * layer + 2] * v
        if value is not None:
            v = v + self.scalars[4 * layer + 3] * value.view_as(v)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        ).transpose(1, 2)
        y = y * torch.sigmoid(F.linear(x[..., :12], gate)).unsqueeze(-1)
        return F.linear(y.reshape(rows, length, WIDTH), four[3])


@torch.compile
def orthogonal(g):
    """Five Newton-Schulz iterations on a stack of matrices."""
    tall = g.size(-2) > g.size(-1)
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    for a, b, c in ((4.0, -6.8, 3.5),) * 5:
        xx = x @ x.mT
        x = a * x + (b * xx + c * xx @ xx) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; every rank updates its share of each stack."""

    def __init__(self, stacks):
        super().__init__(stacks, {"lr": 0.02, "momentum": 0.95})

    @torch.no_grad()
    def step(self):
        stacks = self.param_groups[0]["params"]
        shares = []
        for p in stacks:
            share = torch.empty_like(p[: p.size(0) // world], dtype=torch.bfloat16)
            work = dist.reduce_scatter_tensor(share, p.grad, op=dist.ReduceOp.AVG, async_op=True)
            shares.append((p, share, work))
        gathered = []
        for p, share, work in shares:
            work.wait()
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(share)
            state["momentum"].lerp_(share, 0.05)
            update = orthogonal(share.lerp(state["momentum"], 0.95))
            mine = p[rank * share.size(0) : (rank + 1) * share.size(0)]
            mine.add_(update, alpha=-0.02)
            gathered.append(dist.all_gather_into_tensor(p, mine.clone(), async_op=True))
        for work in gathered:
            work.wait()


with torch.device("cuda"):
    model = GPT()
    for table in (model.embed, *model.values, model.head):
        table.bfloat16()
    angles = torch.outer(torch.arange(LENGTH), torch.rand(WIDTH // HEADS // 2))
cosine, sine = (f(angles)[None, :, None].bfloat16() for f in (torch.cos, torch.sin))
compiled = torch.compile(model, dynamic=False, fullgraph=True)
muon = Muon([model.qkvo, model.mlp])
rest = [p for p in model.parameters() if p is not model.qkvo and p is not model.mlp]
adam = torch.optim.AdamW(rest, lr=1e-3, betas=(0.65, 0.95), fused=True)
for _ in range(20):
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), device="cuda")
    compiled(tokens[:, :-1], tokens[:, 1:], cosine, sine).backward()
    works = [dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True) for p in rest]
    for work in works:
        work.wait()
    adam.step()
    muon.step()
    model.zero_grad(set_to_none=True)
