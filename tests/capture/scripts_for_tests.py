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
