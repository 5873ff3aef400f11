"""Llama with FSDP2 and tensor parallelism (sequence parallel), activation checkpointing and torch.compile.

Laid out as torchtitan does it: a mesh of data and tensor dimensions, RMSNorm and the residual stream sharded
along the sequence, logits and loss along the vocabulary, bf16 parameters with fp32 reduction, fused AdamW,
gradient clipping.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

SIZES = {
    "8b": {"layers": 32, "width": 4096, "heads": 32, "groups": 8, "inner": 14336},
    "70b": {"layers": 80, "width": 8192, "heads": 64, "groups": 8, "inner": 28672},
    "tiny": {"layers": 2, "width": 256, "heads": 8, "groups": 4, "inner": 512},
}
options = argparse.ArgumentParser()
options.add_argument("--size", choices=SIZES, default="8b")
options.add_argument("--layers", type=int, help="fewer layers, to try")
options.add_argument("--tensor", type=int, default=1, help="tensor-parallel ranks")
options.add_argument("--batch", type=int, default=2, help="sequences a data-parallel rank")
options.add_argument("--sequence", type=int, default=8192)
options.add_argument("--checkpoint", choices=("none", "alternate", "full", "selective"), default="alternate")
options.add_argument("--compile", action="store_true")
options = options.parse_args()


class Attention(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.size = width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, groups * self.size, bias=False)
        self.wv = nn.Linear(width, groups * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, rotation):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, self.size) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, rotation), rotated(k, rotation)
        k, v = (y.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for y in (k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))


def rotated(x, rotation):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation[None, :, None]).flatten(3).type_as(x)


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads, groups, inner):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, groups)
        self.feed_forward = FeedForward(width, inner)

    def forward(self, x, rotation):
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, layers, width, heads, groups, inner, vocab=128256):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, heads, groups, inner) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens, rotation):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.output(self.norm(x))


def shard_tensors(model, mesh):
    """Sequence parallel outside attention and MLP, columns and rows inside."""
    top = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, top)
    for block in model.layers:
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        }
        parallelize_module(block, mesh, plan)


def checkpointed(block, number):
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    if options.checkpoint == "none" or (options.checkpoint == "alternate" and number % 2):
        return block
    if options.checkpoint != "selective":
        return checkpoint_wrapper(block, preserve_rng_state=False)
    saved = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default,
             torch.ops._c10d_functional.reduce_scatter_tensor.default}  # fmt: skip
    products = {"forward": 0, "again": 0}

    def policy(context, operator, *_, **__):
        """Every second product is computed again, attention and reduced sums are kept."""
        if operator == torch.ops.aten.mm.default:
            kind = "again" if context.is_recompute else "forward"
            products[kind] += 1
            if products[kind] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if operator in saved else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        products.update(forward=0, again=0)
        return create_selective_checkpoint_contexts(policy)

    return checkpoint_wrapper(block, context_fn=contexts, preserve_rng_state=False)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
sizes = dict(SIZES[options.size])
sizes["layers"] = options.layers or sizes["layers"]
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world // options.tensor, options.tensor), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = Llama(**sizes)
if options.tensor > 1:
    shard_tensors(model, mesh["tp"])
for number, block in enumerate(model.layers):
    model.layers[number] = checkpointed(block, number)
if options.compile:
    for block in model.layers:
        block.compile(fullgraph=True)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.layers:
    fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
model.to_empty(device="cuda")
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02)
head = sizes["width"] // sizes["heads"]
rotation = torch.polar(
    torch.ones(options.sequence, head // 2, device="cuda"),
    torch.rand(options.sequence, head // 2, device="cuda"),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def loss_of(tokens):
    logits = model(tokens[:, :-1], rotation)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


for _ in range(10):
    tokens = torch.randint(0, 128256, (options.batch, options.sequence + 1), device="cuda")
    with loss_parallel() if options.tensor > 1 else nullcontext():
        loss_of(tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
