"""A Llama in plain PyTorch with DistributedDataParallel and bf16 autocast."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, GROUPS, FFN, VOCAB, LENGTH = 2048, 32, 8, 8192, 128256, 4096


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        kv = WIDTH // HEADS * GROUPS
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, out, bias=False) for out in (WIDTH, kv, kv, WIDTH))
        self.gate, self.up = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(WIDTH, FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.norm1(x)
        q, k, v = (p(y).view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (z.repeat_interleave(HEADS // GROUPS, dim=1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, WIDTH))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers=16):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, VOCAB, bias=False)
        angles = torch.outer(torch.arange(LENGTH), 10000.0 ** -torch.linspace(0, 1, WIDTH // HEADS // 2))
        self.register_buffer("angles", torch.cat((angles, angles), dim=-1))

    def forward(self, tokens):
        x = self.tokens(tokens)
        cos, sin = self.angles.cos().to(x.dtype), self.angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        scores = self.head(self.norm(x)).float()
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = DistributedDataParallel(Llama().to(local), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for _ in range(10):
    tokens = torch.randint(0, VOCAB, (1, LENGTH)).to(local)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
