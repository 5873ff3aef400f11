"""A card → the model, and what its library calls a training step: inputs drawn on the device, loss."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from stepsight.errors import InputError, StepsightError
from stepsight.inputs import read_json
from stepsight.records import read_toml
from stepsight.workload.files import shipped

Loss = Callable[[torch.nn.Module], torch.Tensor]
DEFAULT_TEXT = 20
"""Tokens a text has next to an image where a row states none: transformers' default max_length."""
_REPEATED = 2
"""This many children of one class in a list are the blocks of a network."""


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
    from stepsight.capturing.operators import define_vision_operators

    define_vision_operators()  # timm and PEFT import torchvision
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
        identical = [m for m in timm.list_models() if plain(m).startswith(plain(name))]
        exact = [m for m in identical if plain(m) == plain(name)]
        if len(exact or identical) != 1:
            known = f"it may be {', '.join(identical[:5])}" if identical else "timm has no model of this name"
            raise InputError(f"model {card.name}", known, "write timm_ and the whole name")
        name = (exact or identical)[0]
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


PREFIXES = {"timm_": "timm", "torchvision_": "torchvision", "tv_": "torchvision", "hf_": "transformers"}
"""What a model's name starts with, and the library it means."""

_FAMILIES = {"llama": "llama", "mistral": "mistral", "qwen": "qwen2", "gemma": "gemma", "opt": "opt"}
"""Families of the shipped language models that transformers builds under one model_type."""


@dataclass(frozen=True, slots=True)
class Card:
    """A model of a library; ``library`` is empty where the name does not tell: each is tried in turn."""

    name: str
    library: str
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: tuple[str, ...] = ()


def card(name: str, configs: Path | None = None) -> Card:
    """The card of a model named in a measured table; ``configs`` is a folder of configuration files."""
    file = configs / f"{name}.json" if configs else None
    if file is not None and file.is_file():
        return _from_file(name, file)
    known = _cards()
    prefix = next((p for p in PREFIXES if name.lower().startswith(p)), "")
    bare = name[len(prefix) :]
    found = known.get(name) or _same_name(name, known) or _same_name(bare, known)
    if found is not None and (not prefix or found.library == PREFIXES[prefix]):
        return found
    if prefix in ("", "hf_"):
        language = _language_model(bare)
        if language is not None:
            return language
    return Card(name, PREFIXES.get(prefix, ""), bare)


@cache
def _cards() -> Mapping[str, Card]:
    with resources.as_file(resources.files("lab.library") / "cards.toml") as path:
        rows = read_toml(path)
    made: dict[str, Card] = {}
    for name, row in rows.items():
        same = rows.get(row.get("same_as", ""), {})
        sizes = {**same.get("sizes", {}), **row.get("sizes", {})}
        made[name] = Card(name, row["library"], row["model"], sizes, tuple(row.get("checkpoint", ())))
    return made


def plain(name: str) -> str:
    """A name without what people write differently: case, separators, "v3" for 3, 3.2 for 3."""
    name = re.sub(r"(?<=\d)\.\d+(?=[-_])", "", name.lower())
    name = re.sub(r"(?<=[-_])v(?=\d)", "", name)
    return re.sub(r"[^a-z0-9]", "", name)


def _same_name(name: str, known: Mapping[str, Card]) -> Card | None:
    wanted = plain(name)
    return next((c for key, c in known.items() if plain(key) == wanted), None)


def _from_file(name: str, file: Path) -> Card:
    content = read_json(file, "give the config.json of a transformers model")
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise InputError(str(file), "holds no model_type", "give the config.json of a transformers model")
    sizes = {k: v for k, v in content.items() if k not in ("model_type", "architectures", "torch_dtype")}
    return Card(name, "transformers", content["model_type"], sizes)


def _language_model(name: str) -> Card | None:
    """A shipped language model as transformers configures it."""
    wanted = plain(name)
    row = next((r for key, r in shipped().items() if plain(key) == wanted), None)
    if row is None or row.get("family") not in _FAMILIES:
        return None
    fields = {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads", "ffn": "intermediate_size", "vocab": "vocab_size",
        "head_dim": "head_dim", "tied": "tie_word_embeddings",
    }  # fmt: skip
    if row["family"] == "opt":
        fields = {**fields, "ffn": "ffn_dim"}
        fields.pop("kv_heads")
    sizes = {fields[k]: v for k, v in row.items() if k in fields}
    if row["family"] == "opt":
        sizes["word_embed_proj_dim"] = row["hidden"]
    return Card(name, "transformers", _FAMILIES[row["family"]], sizes)


PRECISIONS = ("FP", "MP", "HP")
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A row of a measured table; FP is fp32, MP fp32 under fp16 autocast, HP fp16 throughout."""

    model: str
    batch: int
    sequence: int = -1
    image: int = -1
    precision: str = "FP"
    checkpointing: bool = False
    steps: int = 5
    configs: str = ""


def train(asked: Asked) -> None:
    dtype = torch.float16 if asked.precision == "HP" else torch.float32
    sizes = Sizes(asked.batch, asked.sequence, asked.image, dtype)
    found = card(asked.model, Path(asked.configs) if asked.configs else None)
    with torch.device("cuda"):
        built = build(found, sizes)
    model = built.model.to(dtype=dtype)
    optimizer = _optimizer(built, model)
    if asked.checkpointing and not recompute(model, found.checkpoint):
        raise StepsightError(
            f"model {asked.model}: no blocks were found whose activations could be recomputed"
        )
    print(f"{asked.model}: {built.described}", file=sys.stderr)
    mixed = asked.precision == "MP"
    cast: Any = torch.autocast("cuda", dtype=torch.float16) if mixed else contextlib.nullcontext()
    for _ in range(asked.steps):
        with sdpa_kernel(_FUSED):
            with cast:
                loss = built.loss(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _optimizer(built: Built, model: torch.nn.Module) -> torch.optim.Optimizer:
    """timm's own maker leaves weight decay out; the others take it."""
    decay = 0.0 if built.described.startswith("timm") else 1e-4
    return torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=decay, eps=1e-6)


if __name__ == "__main__":
    try:
        train(msgspec.json.decode(sys.argv[1], type=Asked))
    except StepsightError as error:
        raise SystemExit(str(error)) from None
