"""ResNet-50 (v1.5) or the U-Net of Stable Diffusion 2 with DDP, bf16 autocast, channels last.

stepsight capture examples/capture/vision.py --world 8 -p 8xA100-SXM4-80G -- --model resnet50 --batch 256
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Bottleneck(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if width_in != out or stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(width_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x), inplace=True)


def resnet50() -> nn.Module:
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
    ]
    parts.append(nn.MaxPool2d(3, 2, 1))
    width_in = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for i in range(blocks):
            parts.append(Bottleneck(width_in, width, 2 if i == 0 and width > 64 else 1))
            width_in = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Residual(nn.Module):
    def __init__(self, width_in: int, width: int, time_width: int = 1280) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, width_in), nn.SiLU(), nn.Conv2d(width_in, width, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time_width, width))
        self.second = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.skip = nn.Conv2d(width_in, width, 1) if width_in != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.skip(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])


class Attention(nn.Module):
    def __init__(self, width: int, context: int, head: int = 64) -> None:
        super().__init__()
        self.head = head
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(context, width, bias=False), nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for t in (self.q(x), self.k(context), self.v(context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self, width: int, text: int = 1024) -> None:
        super().__init__()
        self.norm, self.into, self.back = (
            nn.GroupNorm(32, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width), Attention(width, text)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        height = x.shape[2]
        h = self.into(self.norm(x).flatten(2).transpose(1, 2))
        one = self.norms[0](h)
        h = h + self.own(one, one)
        h = h + self.cross(self.norms[1](h), text)
        value, gate = self.up(self.norms[2](h)).chunk(2, dim=-1)
        h = h + self.down(value * F.gelu(gate))
        return x + self.back(h).transpose(1, 2).unflatten(2, (height, -1))


class UNet(nn.Module):
    """Four levels of 320 to 1,280 channels, two residual blocks each; attention on the upper three."""

    def __init__(self) -> None:
        super().__init__()
        widths, held = (320, 640, 1280, 1280), [320]
        self.time = nn.Sequential(nn.Linear(320, 1280), nn.SiLU(), nn.Linear(1280, 1280))
        self.into = nn.Conv2d(4, 320, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = 320
        for level, width in enumerate(widths):
            for _ in range(2):
                self.down.append(
                    nn.ModuleList([Residual(before, width), *([Transformer(width)] if level < 3 else [])])
                )
                before = width
                held.append(width)
            if level < 3:
                self.down.append(nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1)]))
                held.append(width)
        self.middle = nn.ModuleList([Residual(1280, 1280), Transformer(1280), Residual(1280, 1280)])
        for level, width in reversed(list(enumerate(widths))):
            for i in range(3):
                block = [Residual(before + held.pop(), width), *([Transformer(width)] if level < 3 else [])]
                self.up.append(
                    nn.ModuleList([*block, *([nn.Conv2d(width, width, 3, 1, 1)] if i == 2 and level else [])])
                )
                before = width
        self.out = nn.Sequential(nn.GroupNorm(32, 320), nn.SiLU(), nn.Conv2d(320, 4, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        t = self.time(time)
        x = self.into(x)
        kept = [x]
        for block in self.down:
            x = run(block, x, t, text)
            kept.append(x)
        x = run(self.middle, x, t, text)
        for block in self.up:
            up = block[-1] if isinstance(block[-1], nn.Conv2d) else None
            x = run(block[:-1] if up else block, torch.cat((x, kept.pop()), 1), t, text)
            x = up(F.interpolate(x, scale_factor=2.0)) if up else x
        return self.out(x)


def run(block: nn.ModuleList, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
    for part in block:
        x = (
            part(x, time)
            if isinstance(part, Residual)
            else part(x, text)
            if isinstance(part, Transformer)
            else part(x)
        )
    return x


parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=("resnet50", "stable-diffusion"), default="resnet50")
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--size", type=int, default=64, help="of a latent: 64 for images of 512 pixels")
options = parser.parse_args()
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
made = resnet50() if options.model == "resnet50" else UNet()
made = made.to(local, memory_format=torch.channels_last)
model = DistributedDataParallel(made, device_ids=[local], gradient_as_bucket_view=True)
if options.model == "resnet50":
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
n = options.batch
for _ in range(20):
    if options.model == "resnet50":
        images = torch.randn(n, 3, 224, 224, device=local).to(memory_format=torch.channels_last)
        target = torch.randint(0, 1000, (n,), device=local)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images), target)
    else:
        latents = torch.randn(n, 4, options.size, options.size, device=local).to(
            memory_format=torch.channels_last
        )
        time, text = torch.randn(n, 320, device=local), torch.randn(n, 77, 1024, device=local)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(latents, time, text), torch.randn_like(latents))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
