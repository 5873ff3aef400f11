"""A step of a timm model on random images: ``python -m lab.score.capture.image_step JSON``.

Training is what timm's benchmark does: autocast (unless fp32) around forward, loss and backward, SGD with
Nesterov momentum as a loop over tensors, gradients zeroed in place. Inference is the forward pass alone,
under inference mode.
"""

from __future__ import annotations

import sys

import msgspec
import timm
import timm.layers
import torch


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A row of a published table; ``params_m`` tells whether today's model is that of the row."""

    model: str
    batch: int
    image: int
    channels_last: bool = False
    training: bool = True
    fused_attention: bool = False
    params_m: float = 0.0
    compiled: bool = False
    precision: str = "fp16"


def run(asked: Asked) -> None:
    torch.backends.cudnn.benchmark = True
    timm.layers.set_fused_attn(asked.fused_attention)
    model = _model(asked)
    if asked.compiled:
        model = torch.compile(model)
    memory = torch.channels_last if asked.channels_last else torch.contiguous_format
    images = torch.randn(asked.batch, 3, asked.image, asked.image, device="cuda").to(memory_format=memory)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(asked.precision)
    mixed = torch.autocast("cuda", dtype=dtype, enabled=dtype is not None)
    (_train if asked.training else _infer)(model, images, mixed)


def _model(asked: Asked) -> torch.nn.Module:
    with torch.device("cuda"):
        try:
            model = timm.create_model(asked.model, pretrained=False, num_classes=1000)
            fixed = getattr(getattr(model, "patch_embed", None), "img_size", None)
            if fixed and tuple(fixed) != (asked.image, asked.image):
                model = timm.create_model(
                    asked.model, pretrained=False, num_classes=1000, img_size=asked.image
                )
        except RuntimeError as error:
            raise SystemExit(str(error).partition("\n")[0]) from None
    found = sum(p.numel() for p in model.parameters()) / 1e6
    if asked.params_m and abs(found - asked.params_m) > max(0.011, 0.002 * asked.params_m):
        raise SystemExit(f"today's {asked.model} has {found:.2f} M parameters, the row {asked.params_m}")
    if asked.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model.train(asked.training)


def _train(model: torch.nn.Module, images: torch.Tensor, mixed: torch.autocast) -> None:
    target = torch.randint(0, 1000, (images.shape[0],), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, foreach=False)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=False)
        with mixed:
            out = model(images)
            if isinstance(out, tuple):
                out = out[0]
            torch.nn.functional.cross_entropy(out, target).backward()
        optimizer.step()


def _infer(model: torch.nn.Module, images: torch.Tensor, mixed: torch.autocast) -> None:
    steps = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(5):
        with torch.inference_mode(), mixed:
            model(images)
        steps.step()


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Asked))
