"""A training step of the kinds named as arguments, small: diffusion, speech, detection, graph, recurrent."""

import sys

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def unet():
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16, cross_attention_dim=64, attention_head_dim=4, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), layers_per_block=1,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    text, steps = torch.randn(2, 7, 64, device="cuda"), torch.randint(0, 1000, (2,), device="cuda")
    latents = torch.randn(2, 4, 16, 16, device="cuda")
    return model, lambda m: F.mse_loss(m(latents, steps, text).sample.float(), latents)


def dit():
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_layers=2, num_attention_heads=2, attention_head_dim=32, sample_size=8
    )
    steps, label = (torch.randint(0, 1000, (2,), device="cuda") for _ in range(2))
    latents = torch.randn(2, 4, 8, 8, device="cuda")
    return model, lambda m: m(latents, timestep=steps, class_labels=label).sample.float().square().mean()


def whisper():
    import transformers

    config = transformers.WhisperConfig(
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=100,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    sound, labels = torch.randn(2, 80, 200, device="cuda"), torch.randint(0, 50000, (2, 16), device="cuda")
    return model, lambda m: m(input_features=sound, labels=labels).loss


def retinanet():
    from torchvision.models.detection import retinanet_resnet50_fpn

    return _detection(retinanet_resnet50_fpn(weights=None, weights_backbone=None, min_size=128), 128)


def ssd():
    from torchvision.models.detection import ssd300_vgg16

    return _detection(ssd300_vgg16(weights=None, weights_backbone=None), 300)


def _detection(model, side):
    target = {"boxes": torch.tensor([[10.0, 10, 90, 90]]).cuda(), "labels": torch.tensor([1]).cuda()}

    def loss(model):
        images = [torch.rand(3, side, side, device="cuda") for _ in range(2)]
        return sum(model(images, [dict(target) for _ in images]).values())

    return model, loss


def geometric():
    from torch_geometric.nn import GATConv, SAGEConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = SAGEConv(32, 32), GATConv(32, 8, heads=4)

        def forward(self, x, edges):
            return self.second(F.relu(self.first(x, edges)), edges)

    x, edges = torch.randn(500, 32, device="cuda"), torch.randint(0, 500, (2, 4000)).cuda()
    return Net(), lambda m: m(x, edges).square().mean()


def graph():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.other = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x, source, target):
            summed = torch.zeros_like(x).index_add_(0, target, x[source])
            largest = torch.zeros_like(x).scatter_reduce(0, target[:, None].expand(-1, 32), x[source], "amax")
            return self.own(summed) + self.other(largest)

    x = torch.randn(500, 32, device="cuda")
    source, target = (torch.randint(0, 500, (4000,), device="cuda") for _ in range(2))
    return Net(), lambda m: m(x, source, target).square().mean()


def recurrent():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = nn.LSTM(32, 64, 2, batch_first=True), nn.GRU(64, 32, bidirectional=True)

        def forward(self, x):
            return self.gru(self.lstm(x)[0])[0]

    x = torch.randn(4, 12, 32, device="cuda")
    return Net(), lambda m: m(x).square().mean()


made = [globals()[kind]() for kind in sys.argv[1:]]
models = nn.ModuleList(model for model, _ in made).cuda().train()
optimizer = torch.optim.AdamW(models.parameters(), lr=1e-4)
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        value = sum(loss(model) for model, (_, loss) in zip(models, made, strict=True))
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
