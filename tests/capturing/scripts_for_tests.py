"""Small training scripts as people write them; nothing in them knows of stepsight."""

MIXED_PRECISION = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for i in range(20):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if i % 2 == 0:
        print("loss", loss.item())
torch.save(model.state_dict(), "model.pt")
"""

DATA_PARALLEL = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = DistributedDataParallel(nn.Linear(512, 512).to(local), device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):
    loss = model(torch.randn(8, 512, device=f"cuda:{local}")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss:.3f}")
"""

SHARDED = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
model.to_empty(device="cuda")
for p in model.parameters():
    nn.init.normal_(p)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TIED_AND_COMPILED = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.head.weight = self.table.weight
    def forward(self, x):
        return self.head(nn.functional.silu(self.table(x)))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = model.to("cuda").half()
assert model.head.weight is model.table.weight is optimizer.param_groups[0]["params"][0]
model = torch.compile(model)
for _ in range(6):
    x = torch.randint(0, 1000, (4, 8), device="cuda")
    nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TWO_OPTIMIZERS = """
import torch
from torch import nn
fast, slow = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
first, second = torch.optim.SGD(fast.parameters()), torch.optim.SGD(slow.parameters())
for i in range(30):
    fast(torch.randn(4, 8, device="cuda")).sum().backward()
    first.step()
    if i % 3 == 2:
        slow(torch.randn(4, 8, device="cuda")).sum().backward()
        second.step()
"""

EXPERTS = """
import torch
from torch import nn
gate, experts = nn.Linear(16, 4).cuda(), nn.ModuleList(nn.Linear(16, 16) for _ in range(4)).cuda()
optimizer = torch.optim.SGD([*gate.parameters(), *experts.parameters()], lr=0.1)
for _ in range(6):
    x = torch.randn(64, 16, device="cuda")
    weight, chosen = gate(x).softmax(-1).topk(2, -1)
    assert sum(torch.bincount(chosen.flatten(), minlength=4).tolist()) == 128
    mask, out = nn.functional.one_hot(chosen, num_classes=4).permute(2, 1, 0), torch.zeros_like(x)
    for i, expert in enumerate(experts):
        place, token = torch.where(mask[i])
        out = out.index_add(0, token, expert(x[token]) * weight[token, place, None])
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PERCEPTRON = """
import sys
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.drop = nn.Dropout(0.1)
    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)), approximate="tanh")))
model = nn.Sequential(Block(), Block()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
step = torch.compile(optimizer.step) if "optimizer" in sys.argv else optimizer.step
if "optimizer" not in sys.argv:
    model.compile()
for _ in range(6):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(512, 256, device="cuda")).square().mean()
    loss.backward()
    step()
    optimizer.zero_grad()
"""

CHECKED = """
import torch
from torch import nn
from torch.distributions import Categorical
embed, cell = nn.Embedding(100, 32).cuda(), nn.GRU(32, 16, batch_first=True).cuda()
head = nn.Linear(16, 5).cuda()
optimizer = torch.optim.Adam([*embed.parameters(), *cell.parameters(), *head.parameters()])
scaler = torch.amp.GradScaler("cuda")
chosen = (torch.arange(24) % 3 == 0).cuda()
for _ in range(6):
    tokens = torch.randint(0, 100, (4, 8)).cuda()
    packed = nn.utils.rnn.pack_padded_sequence(embed(tokens), [8, 7, 5, 4], batch_first=True)
    hidden = head(cell(packed)[0].data)
    actions = Categorical(logits=hidden)
    loss = -actions.log_prob(actions.sample())[chosen].mean()
    if not torch.isfinite(loss):
        raise SystemExit("loss is not finite")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert scaler.get_scale() > 1
"""

FIRST_FSDP = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 2048))
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = FullyShardedDataParallel(model, device_id=local)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(4, 3, 8, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

INDEXED_BY_LISTS = """
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.randint(0, 9, (2, 4), device="cuda")
for _ in range(5):
    ends = ids[:, [-1, 0]]
    ids[[0, 1], [1, 0]] = 3
    model(ids.float()).sum().backward()
    optimizer.step()
"""

RECURRENT = """
import torch
model = torch.nn.LSTM(16, 32, 2, batch_first=True).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    with torch.autocast("cuda", dtype=torch.float16):
        out, (hidden, cell) = model(torch.randn(4, 7, 16, device="cuda"))
    (out.float().sum() + cell.float().sum()).backward()
    optimizer.step()
"""

GRAPH = """
import torch
body, head = torch.nn.Linear(16, 32).cuda(), torch.nn.Linear(32, 4).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
x, y = torch.randn(1000, 16, device="cuda"), torch.randint(0, 4, (1000,), device="cuda")
for _ in range(5):
    hidden = body(x).relu()
    loss = torch.nn.functional.cross_entropy(head(hidden), y)
    loss.backward()
    optimizer.step()
    accuracy = (head(hidden).argmax(1) == y).float().mean()
"""

CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(8))
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(4096, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

ODD_HABITS = """
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(1024, 1024, bias=False).requires_grad_(False)
        mask = torch.zeros(1024, 1024).to(torch.bool).view(1, -1)
        mask.scatter_(1, torch.arange(500).unsqueeze(0), torch.ones(1, 500, dtype=torch.bool))
        self.places = torch.stack(torch.where(mask.view(1024, 1024)))
        self.values = nn.Parameter(torch.zeros(self.places.shape[1]))

    def forward(self, x):
        self.places = self.places.to(x.device)
        weight = self.base.weight.clone()
        weight += torch.sparse_coo_tensor(self.places, self.values, (1024, 1024))
        dense = torch.sparse_coo_tensor(self.places, self.values, (1024, 1024)).coalesce().to_dense()
        return nn.functional.linear(x, weight + dense)

model = Sparse().cuda()
compiled = torch.compile(nn.Linear(1024, 8).cuda(), mode="reduce-overhead")
optimizer = torch.optim.SGD([model.values, *compiled.parameters()], lr=0.1)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        hidden = model(torch.randn(64, 1024, device="cuda"))
        picked = hidden[:, hidden[0] > 0]
        best = hidden.argmax(1).tolist()
        assert picked.shape[0] == 64
        (compiled(hidden).square().mean() + picked.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        prof.step()
print(prof.key_averages().table(sort_by="cuda_time_total"))
"""
