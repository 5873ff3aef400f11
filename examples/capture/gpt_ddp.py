"""A small GPT with DistributedDataParallel, autocast and gradient accumulation, as people write it."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Tokens(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        tokens = torch.randint(0, 50304, (1025,))
        return tokens[:-1], tokens[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width=768, heads=12, layers=12, vocab=50304, length=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x, y):
        z = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            z = block(z)
        return F.cross_entropy(self.head(self.norm(z)).flatten(0, 1), y.flatten())


dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.set_float32_matmul_precision("high")
model = DistributedDataParallel(GPT().to(local), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
data = Tokens()
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=2, pin_memory=True)
ACCUMULATE = 4
for i, (x, y) in enumerate(loader):
    x, y = x.to(local, non_blocking=True), y.to(local, non_blocking=True)
    model.require_backward_grad_sync = i % ACCUMULATE == ACCUMULATE - 1
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x, y) / ACCUMULATE
    loss.backward()
    if i % ACCUMULATE == ACCUMULATE - 1:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"{i // ACCUMULATE} {loss.item():.3f}")
            torch.save(model.module.state_dict(), "checkpoint.pt")
