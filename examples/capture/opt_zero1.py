"""OPT-1.3B (from its configuration), optimizer states sharded over the ranks (ZeRO stage 1), written by hand.

As DeepSpeed does it: half-precision gradients are reduced in buckets after the backward pass, every rank
keeps and updates its part of the fp32 weights, and the updated parts are gathered.
"""

import argparse
import os

import torch
import torch.distributed as dist
from transformers import OPTConfig, OPTForCausalLM

options = argparse.ArgumentParser()
options.add_argument("--batch", type=int, default=8)
options.add_argument("--sequence", type=int, default=512)
options.add_argument("--dtype", default="bfloat16")
options.add_argument("--bucket", type=int, default=500_000_000, help="elements of a gradient bucket")
options = options.parse_args()
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dtype = getattr(torch, options.dtype)
config = OPTConfig(
    hidden_size=2048, ffn_dim=8192, num_hidden_layers=24, num_attention_heads=32, vocab_size=50272,
    word_embed_proj_dim=2048, max_position_embeddings=2048, dropout=0.1, use_cache=False,
    attn_implementation="eager",
)  # fmt: skip
with device:
    model = OPTForCausalLM(config).to(dtype)
model.train()


class Zero1:
    """One group of parameters: flat half-precision weights, and this rank's part of them in fp32."""

    def __init__(self, parameters, decay):
        self.parameters = parameters
        size = sum(p.numel() for p in parameters)
        self.part = -(-size // world)
        self.flat = torch.zeros(self.part * world, dtype=dtype, device=device)
        at = 0
        for p in parameters:
            self.flat[at : at + p.numel()].copy_(p.data.view(-1))
            p.data = self.flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        mine = self.flat[rank * self.part : (rank + 1) * self.part]
        self.own = torch.nn.Parameter(mine.float())
        self.optimizer = torch.optim.AdamW([self.own], lr=1e-5, weight_decay=decay, fused=True)

    def step(self, scale):
        flat = torch.cat([p.grad.view(-1) for p in self.parameters])
        flat = torch.nn.functional.pad(flat, (0, self.part * world - flat.numel()))
        self.own.grad = flat[rank * self.part : (rank + 1) * self.part].float().mul_(scale)
        self.optimizer.step()
        mine = self.flat[rank * self.part : (rank + 1) * self.part]
        mine.copy_(self.own.data)
        dist.all_gather_into_tensor(self.flat, mine.clone())
        for p in self.parameters:
            p.grad = None


class Buckets:
    """Gradients are averaged over the ranks, this many elements at a time."""

    def __init__(self):
        self.waiting, self.held, self.sent = [], 0, []

    def ready(self, parameter):
        if self.held + parameter.numel() > options.bucket:
            self.flush()
        self.waiting.append(parameter)
        self.held += parameter.numel()

    def flush(self):
        if self.waiting:
            flat = torch._utils._flatten_dense_tensors([p.grad for p in self.waiting])
            flat.div_(world)
            self.sent.append((dist.all_reduce(flat, async_op=True), flat, self.waiting))
        self.waiting, self.held = [], 0

    def reduce(self, parameters):
        for p in parameters:
            self.ready(p)
        self.flush()
        for work, flat, parameters in self.sent:
            work.wait()
            pieces = torch._utils._unflatten_dense_tensors(flat, [p.grad for p in parameters])
            for p, piece in zip(parameters, pieces, strict=True):
                p.grad.copy_(piece)
        self.sent = []


buckets = Buckets()
matrices = [p for p in model.parameters() if p.dim() > 1]
vectors = [p for p in model.parameters() if p.dim() == 1]
groups = [Zero1(matrices, 0.01), Zero1(vectors, 0.0)]
for _ in range(10):
    tokens = torch.randint(0, 50272, (options.batch, options.sequence)).to(device)
    loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss
    loss.backward()
    buckets.reduce([*matrices, *vectors])
    norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in (*matrices, *vectors)]
    total = torch.stack(norms).square().sum()
    dist.all_reduce(total)
    scale = 1.0 / max(total.sqrt().item(), 1.0)
    for group in groups:
        group.step(scale)
