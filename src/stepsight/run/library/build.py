"""A card → the model, and what its library calls a training step: inputs drawn on the device, loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from stepsight.errors import InputError
from stepsight.run.library.cards import Card, plain

Loss = Callable[[torch.nn.Module], torch.Tensor]
DEFAULT_TEXT = 20
"""Tokens a text has beside an image where a row states none: transformers' default max_length."""
_REPEATED = 2
"""So many children of one class in a list are the blocks of a network."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A row's sizes; -1 where it has none. ``dtype`` is that of weights and images."""

    batch: int
    sequence: int
    image: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Built:
    """A model on the device, how its loss comes about, and how it is described."""

    model: torch.nn.Module
    loss: Loss
    described: str


def build(card: Card, sizes: Sizes) -> Built:
    """The model of a card for these sizes; made on the default device."""
    makers = {"timm": _timm, "torchvision": _torchvision, "transformers": _transformers}
    if card.library:
        return makers[card.library](card, sizes)
    tried = []
    for library, maker in makers.items():
        try:
            return maker(card, sizes)
        except InputError as error:
            tried.append(f"{library}: {error.problem}")
    raise InputError(f"model {card.name}", "; ".join(tried), "name it LIBRARY_NAME, or add configs/NAME.json")


def _library(name: str, card: Card) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise InputError(
            f"model {card.name}", f"{name} is not installed", "pip install 'stepsight[models]'"
        ) from None


# Images


def _timm(card: Card, sizes: Sizes) -> Built:
    timm = _library("timm", card)
    name = card.model
    if not timm.is_model(name):
        alike = [m for m in timm.list_models() if plain(m).startswith(plain(name))]
        exact = [m for m in alike if plain(m) == plain(name)]
        if len(exact or alike) != 1:
            known = f"it may be {', '.join(alike[:5])}" if alike else "timm has no model of this name"
            raise InputError(f"model {card.name}", known, "write timm_ and the whole name")
        name = (exact or alike)[0]
    model = timm.create_model(name, pretrained=False)
    fixed = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if sizes.image > 0 and fixed and tuple(fixed) != (sizes.image, sizes.image):
        model = timm.create_model(name, pretrained=False, img_size=sizes.image)
    image = sizes.image if sizes.image > 0 else model.default_cfg["input_size"][-1]
    return Built(model, _classified(sizes, image, model.num_classes), f"timm {timm.__version__} {name}")


def _torchvision(card: Card, sizes: Sizes) -> Built:
    torchvision = _library("torchvision", card)
    models = torchvision.models
    name = next((m for m in models.list_models(models) if plain(m) == plain(card.model)), None)
    if name is None:
        raise InputError(f"model {card.name}", "torchvision has no model of this name", "check its name")
    image = sizes.image if sizes.image > 0 else 224
    loss = _classified(sizes, image, 1000)
    return Built(models.get_model(name, weights=None), loss, f"torchvision {torchvision.__version__} {name}")


def _classified(sizes: Sizes, image: int, classes: int) -> Loss:
    def loss(model: torch.nn.Module) -> torch.Tensor:
        images = torch.randn(sizes.batch, 3, image, image, dtype=sizes.dtype, device="cuda")
        labels = torch.randint(0, classes, (sizes.batch,), device="cuda")
        out = model(images)
        if not isinstance(out, torch.Tensor):  # inception and googlenet add the logits of their side arms
            out = out.logits
        return functional.cross_entropy(out, labels)

    return loss


# Texts, and texts with images


def _transformers(card: Card, sizes: Sizes) -> Built:
    transformers = _library("transformers", card)
    types = {plain(name): name for name in transformers.CONFIG_MAPPING}
    kind = types.get(plain(card.model))
    if kind is None:
        raise InputError(
            f"model {card.name}", "transformers has no configuration of this name", "add configs/NAME.json"
        )
    config = transformers.AutoConfig.for_model(kind, **_copied(card.sizes))
    described = f"transformers {transformers.__version__} {kind}"
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        if sizes.image > 0:
            config.vision_config.image_size = sizes.image
        model = transformers.AutoModel.from_config(config)
        return Built(_Contrastive(model), _matched(config, sizes), described)
    tasks = ("ForSeq2SeqLM", "ForMaskedLM", "ForCausalLM", "ForImageClassification")
    for task in tasks if getattr(config, "is_encoder_decoder", False) else tasks[1:]:
        maker = getattr(transformers, f"AutoModel{task}")
        if type(config) in maker._model_mapping:
            break
    else:
        raise InputError(f"model {card.name}", f"no loss is known for a {kind}", "capture your own script")
    model = maker.from_config(config)
    return Built(model, _pictured(config, sizes) if "Image" in task else _read(config, sizes), described)


def _copied(sizes: Any) -> dict[str, Any]:
    return {k: dict(v) if isinstance(v, dict) else v for k, v in sizes.items()}


def _read(config: Any, sizes: Sizes) -> Loss:
    length = sizes.sequence if sizes.sequence > 0 else 512

    def loss(model: torch.nn.Module) -> torch.Tensor:
        shape = (sizes.batch, length)
        ids = torch.randint(0, config.vocab_size, shape, device="cuda")
        labels = torch.randint(0, config.vocab_size, shape, device="cuda")
        out: torch.Tensor = model(input_ids=ids, labels=labels).loss
        return out

    return loss


def _pictured(config: Any, sizes: Sizes) -> Loss:
    image = sizes.image if sizes.image > 0 else getattr(config, "image_size", 224)

    def loss(model: torch.nn.Module) -> torch.Tensor:
        pixels = torch.randn(sizes.batch, 3, image, image, dtype=sizes.dtype, device="cuda")
        labels = torch.randint(0, config.num_labels, (sizes.batch,), device="cuda")
        out: torch.Tensor = model(pixel_values=pixels, labels=labels).loss
        return out

    return loss


class _Contrastive(torch.nn.Module):  # type: ignore[misc]
    """Images and texts of one batch against each other, with a learned temperature."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.log_scale = torch.nn.Parameter(torch.tensor(2.6593, device="cuda"))

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        out = self.model(**inputs)
        scale = self.log_scale.exp()
        by_image = out.image_embeds @ out.text_embeds.t() * scale
        by_text = out.text_embeds @ out.image_embeds.t() * scale
        labels = torch.arange(by_image.shape[0], device=by_image.device)
        return (functional.cross_entropy(by_image, labels) + functional.cross_entropy(by_text, labels)) / 2


def _matched(config: Any, sizes: Sizes) -> Loss:
    text = config.text_config
    length = sizes.sequence if sizes.sequence > 0 else getattr(text, "max_length", None) or DEFAULT_TEXT
    image = config.vision_config.image_size

    def loss(model: torch.nn.Module) -> torch.Tensor:
        pixels = torch.randn(sizes.batch, 3, image, image, dtype=sizes.dtype, device="cuda")
        ids = torch.randint(0, text.vocab_size, (sizes.batch, length), device="cuda")
        mask = torch.ones((sizes.batch, length), dtype=torch.int64, device="cuda")
        out: torch.Tensor = model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
        return out

    return loss


# Activation checkpointing


def recompute(model: torch.nn.Module, classes: tuple[str, ...]) -> set[str]:
    """Recompute the activations of these classes, or of what the network repeats; the classes found."""
    from torch.distributed._composable import checkpoint

    chosen = set(classes) or set(_repeated(model))
    found = [m for m in model.modules() if type(m).__name__ in chosen]
    for module in found:
        checkpoint(module, preserve_rng_state=False)
    return {type(m).__name__ for m in found}


def _repeated(model: torch.nn.Module) -> Iterator[str]:
    """Of language models with RMS norms their MLPs and norms, of others the blocks."""
    names = {type(m).__name__ for m in model.modules()}
    if any(name.endswith("RMSNorm") for name in names):
        yield from (name for name in names if name.endswith(("MLP", "RMSNorm")))
        return
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential) and len(module) >= _REPEATED:
            kinds = {type(child).__name__ for child in module}
            if len(kinds) == 1 and not hasattr(torch.nn, next(iter(kinds))):
                yield from kinds
