"""torchvision's ResNet-50 with DistributedDataParallel and SGD; --soft: targets are probabilities."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
import torchvision
from torch.nn.parallel import DistributedDataParallel

options = argparse.ArgumentParser()
options.add_argument("--batch", type=int, default=32)
options.add_argument("--tf32", action="store_true")
options.add_argument("--soft", action="store_true")
options = options.parse_args()
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32
model = DistributedDataParallel(torchvision.models.resnet50().to(local), device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(20):
    images = torch.randn(options.batch, 3, 224, 224).to(local)
    target = torch.rand(options.batch, 1000) if options.soft else torch.randint(0, 1000, (options.batch,))
    target = target.to(local)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), target)
    loss.backward()
    optimizer.step()
