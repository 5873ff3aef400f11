"""Steps of NVIDIA's example models: ``python -m lab.score.capture.nvidia_step JSON``.

ResNet-50 v1.5, SSD300 with ResNet-50, BERT for SQuAD at 384 tokens, NCF on MovieLens 20M; TF32 as in NVIDIA's
containers; on several GPUs with DistributedDataParallel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[nn.Module], torch.Tensor]
USERS, ITEMS = 138_493, 26_744
SSD_BOXES, SSD_LABELS = (4, 6, 6, 6, 4, 4), 81


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """``batch`` per GPU; ``mixed``: fp16 autocast with loss scaling, else fp32 with TF32."""

    task: str
    batch: int
    mixed: bool


def train(asked: Asked) -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with torch.device("cuda"):
        model, loss, optimizer = TASKS[asked.task](asked.batch)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("nccl")
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        model = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[local])
    scaler = torch.amp.GradScaler("cuda", enabled=asked.mixed)
    for _ in range(5):
        with torch.autocast("cuda", dtype=torch.float16, enabled=asked.mixed):
            value = loss(model)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


Task = tuple[nn.Module, Loss, torch.optim.Optimizer]


def _resnet50(batch: int) -> Task:
    import timm

    model = timm.create_model("resnet50", pretrained=False).train()
    images = torch.randn(batch, 3, 224, 224)
    target = torch.randint(0, 1000, (batch,))

    def loss(m: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(m(images), target, label_smoothing=0.1)

    return model, loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.875, weight_decay=3e-5)


def _bert(batch: int, *, large: bool) -> Task:
    import transformers

    sizes = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    model = transformers.BertForQuestionAnswering(transformers.BertConfig(**(sizes if large else {}))).train()
    ids, mask = torch.randint(0, 30000, (batch, 384)), torch.ones(batch, 384, dtype=torch.int64)
    places = torch.randint(0, 384, (batch,))

    def loss(m: nn.Module) -> torch.Tensor:
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "start_positions": places,
            "end_positions": places,
        }
        return m(**inputs).loss

    return model, loss, torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)


class _Ssd(nn.Module):  # type: ignore[misc]
    """ResNet-50 up to its third stage without that stage's stride, five more scales, and two heads each."""

    def __init__(self) -> None:
        super().__init__()
        import timm

        body = timm.create_model("resnet50", pretrained=False)
        first = body.layer3[0]
        first.conv2.stride = first.downsample[0].stride = (1, 1)
        self.body = nn.Sequential(
            body.conv1, body.bn1, body.act1, body.maxpool, body.layer1, body.layer2, body.layer3
        )
        wide, between = (1024, 512, 512, 256, 256, 256), (256, 256, 128, 128, 128)
        self.more = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, m, 1, bias=False), nn.BatchNorm2d(m), nn.ReLU(inplace=True),
                nn.Conv2d(m, b, 3, padding=int(i < 3), stride=2 if i < 3 else 1, bias=False),
                nn.BatchNorm2d(b), nn.ReLU(inplace=True),
            )
            for i, (a, b, m) in enumerate(zip(wide, wide[1:], between, strict=False))
        )  # fmt: skip
        self.places = nn.ModuleList(
            nn.Conv2d(w, 4 * n, 3, padding=1) for w, n in zip(wide, SSD_BOXES, strict=True)
        )
        self.labels = nn.ModuleList(
            nn.Conv2d(w, SSD_LABELS * n, 3, padding=1) for w, n in zip(wide, SSD_BOXES, strict=True)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        scales = [x]
        for block in self.more:
            scales.append(block(scales[-1]))
        count = x.shape[0]
        places = [h(s).reshape(count, 4, -1) for h, s in zip(self.places, scales, strict=True)]
        labels = [h(s).reshape(count, SSD_LABELS, -1) for h, s in zip(self.labels, scales, strict=True)]
        return torch.cat(places, 2), torch.cat(labels, 2)


def _ssd(batch: int) -> Task:
    model = _Ssd().train()
    images = torch.randn(batch, 3, 300, 300)
    boxes = torch.randn(batch, 4, 8732)
    labels = torch.randint(0, SSD_LABELS, (batch, 8732))

    def loss(m: nn.Module) -> torch.Tensor:
        places, scores = m(images)
        known = labels > 0
        of_places = functional.smooth_l1_loss(places, boxes, reduction="none").sum(1)
        by_box = functional.cross_entropy(scores, labels, reduction="none")
        order = by_box.masked_fill(known, 0).sort(dim=1, descending=True)[1].sort(dim=1)[1]
        negative = order < (3 * known.sum(1)).clamp(max=8732).unsqueeze(-1)
        total = (known * of_places).sum(1) + (by_box * (known | negative)).sum(1)
        return (total / known.sum(1).clamp(min=1)).mean()

    return model, loss, torch.optim.SGD(model.parameters(), lr=2.6e-3, momentum=0.9, weight_decay=5e-4)


class _Ncf(nn.Module):  # type: ignore[misc]
    """Neural matrix factorisation: 64 factors, MLP 256-256-128-64."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, d) for d in (64, 128) for n in (USERS, ITEMS))
        sizes = (256, 256, 128, 64)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(128, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        factors = self.tables[0](user) * self.tables[1](item)
        x = torch.cat([self.tables[2](user), self.tables[3](item)], 1)
        for layer in self.layers:
            x = functional.dropout(functional.relu(layer(x)), 0.5)
        return self.head(torch.cat([factors, x], 1)).squeeze(1)


def _ncf(batch: int) -> Task:
    model = _Ncf().train()
    user, item = torch.randint(0, USERS, (batch,)), torch.randint(0, ITEMS, (batch,))
    label = torch.rand(batch)

    def loss(m: nn.Module) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(m(user, item).float(), label)

    return model, loss, torch.optim.Adam(model.parameters(), lr=0.0045)


TASKS: dict[str, Callable[[int], Any]] = {
    "resnet50": _resnet50,
    "ssd": _ssd,
    "bert_base_squad": lambda batch: _bert(batch, large=False),
    "bert_large_squad": lambda batch: _bert(batch, large=True),
    "ncf": _ncf,
}

if __name__ == "__main__":
    train(msgspec.json.decode(sys.argv[1], type=Asked))
