"""A training step of other kinds of models, ``models.py KIND``: diffusion, speech, detection, graph, LSTM."""

import sys

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def unet():
    """Stable Diffusion 1.5's UNet (diffusers), latents of 64 × 64."""
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=64, cross_attention_dim=768, attention_head_dim=8,
        block_out_channels=(320, 640, 1280, 1280),
    )  # fmt: skip
    text, steps = torch.randn(4, 77, 768, device="cuda"), torch.randint(0, 1000, (4,), device="cuda")

    def loss(model):
        latents = torch.randn(4, 4, 64, 64, device="cuda")
        return F.mse_loss(model(latents, steps, text).sample.float(), latents)

    return model, loss


def dit():
    """A diffusion transformer (diffusers' DiT-XL/2)."""
    import diffusers

    model = diffusers.DiTTransformer2DModel(num_layers=28, num_attention_heads=16, attention_head_dim=72)
    steps, label = torch.randint(0, 1000, (8,), device="cuda"), torch.randint(0, 1000, (8,), device="cuda")

    def loss(model):
        latents = torch.randn(8, 4, 32, 32, device="cuda")
        return model(latents, timestep=steps, class_labels=label).sample.float().square().mean()

    return model, loss


def whisper():
    """Speech recognition: Whisper small (transformers)."""
    import transformers

    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    labels = torch.randint(0, 50000, (8, 128), device="cuda")
    return model, lambda m: m(input_features=torch.randn(8, 80, 3000, device="cuda"), labels=labels).loss


def retinanet():
    """Detection: RetinaNet with ResNet-50 (torchvision), two boxes per image."""
    from torchvision.models.detection import retinanet_resnet50_fpn

    model = retinanet_resnet50_fpn(weights=None, weights_backbone=None)
    boxes = torch.tensor([[50.0, 50.0, 300.0, 300.0], [200.0, 100.0, 400.0, 380.0]]).cuda()
    target = {"boxes": boxes, "labels": torch.tensor([1, 2]).cuda()}

    def loss(model):
        images = [torch.rand(3, 512, 512, device="cuda") for _ in range(4)]
        return sum(model(images, [dict(target) for _ in images]).values())

    return model, loss


def ssd():
    """Detection: SSD300 with VGG-16 (torchvision)."""
    from torchvision.models.detection import ssd300_vgg16

    model = ssd300_vgg16(weights=None, weights_backbone=None)
    boxes = torch.tensor([[50.0, 50.0, 200.0, 200.0]]).cuda()
    target = {"boxes": boxes, "labels": torch.tensor([1]).cuda()}

    def loss(model):
        images = [torch.rand(3, 300, 300, device="cuda") for _ in range(8)]
        return sum(model(images, [dict(target) for _ in images]).values())

    return model, loss


def graph():
    """A graph convolution by gather and scatter: 100 k nodes, 1 M edges."""

    class Convolution(nn.Module):
        def __init__(self, wide, out):
            super().__init__()
            self.own, self.other = nn.Linear(wide, out), nn.Linear(wide, out)

        def forward(self, x, source, target):
            gathered = torch.zeros_like(x).index_add_(0, target, x[source])
            return F.relu(self.own(x) + self.other(gathered))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Convolution(128, 128), Convolution(128, 128)])
            self.head = nn.Linear(128, 47)

        def forward(self, x, source, target):
            for layer in self.layers:
                x = layer(x, source, target)
            return self.head(x)

    x = torch.randn(100_000, 128, device="cuda")
    source, target = (torch.randint(0, 100_000, (1_000_000,), device="cuda") for _ in range(2))
    label = torch.randint(0, 47, (100_000,), device="cuda")
    return Net(), lambda m: F.cross_entropy(m(x, source, target), label)


def lstm():
    """A language model of two LSTM layers."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(20_000, 512), nn.Linear(1024, 20_000)
            self.cells = nn.LSTM(512, 1024, 2, batch_first=True, dropout=0.2)

        def forward(self, ids):
            return self.head(self.cells(self.table(ids))[0])

    ids = torch.randint(0, 20_000, (32, 128), device="cuda")
    return Net(), lambda m: F.cross_entropy(m(ids).flatten(0, 1), ids.flatten())


KINDS = {f.__name__: f for f in (unet, dit, whisper, retinanet, ssd, graph, lstm)}
with torch.device("cuda"):
    model, loss = KINDS[sys.argv[1]]()
model = model.cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        value = loss(model)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
