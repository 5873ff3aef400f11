"""A fine-tuning step by a PEFT method, as its library's benchmark takes it: padded batches of varying length.

``python -m lab.score.capture.peft_step JSON``. A step clones the labels, counts the tokens on the host, clips
gradients, steps AdamW with a scheduler and reads the loss. Steps take the lengths in turn.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import msgspec
import peft
import torch
import transformers
from peft.optimizers import create_lorafa_optimizer, create_riemannian_optimizer

LLAMA_3B = {
    "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 128256, "head_dim": 128, "tie_word_embeddings": True,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
}  # fmt: skip
"""Llama-3.2-3B, as its config.json states it."""


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """``settings`` are the adapter's own, beyond rank and target modules; ``widened``: it is kept in fp32."""

    kind: str
    lengths: list[int]
    rank: int = 0
    targets: list[str] = []
    settings: dict[str, Any] = {}
    batch: int = 4
    trainable: int = 0
    optimizer: str = "adamw"
    widened: bool = True
    checkpointing: bool = False


def train(asked: Asked) -> None:
    config = transformers.LlamaConfig(**LLAMA_3B)
    with torch.device("cuda"):
        base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if asked.checkpointing:
        base.enable_input_require_grads()
        base.gradient_checkpointing_enable()
    adapter = _adapter(asked)
    made = peft.get_peft_model(base, adapter, autocast_adapter_dtype=asked.widened) if adapter else base
    model = made.cuda()
    found = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"trainable {found:,} of {asked.trainable:,}", file=sys.stderr)
    if asked.trainable and abs(found / asked.trainable - 1) > 0.02:
        raise SystemExit(f"the adapter has {found:,} parameters, the row {asked.trainable:,}")
    model.train()
    optimizer = _optimizer(asked, model)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 500, 5000)
    for length in asked.lengths:
        _step(asked.batch, length, model, optimizer, schedule)
        if asked.kind == "ADALORA":
            model.base_model.update_and_allocate(asked.settings["tinit"] + 1)


def _optimizer(asked: Asked, model: Any) -> torch.optim.Optimizer:
    if asked.optimizer == "lorafa":
        return create_lorafa_optimizer(model, asked.rank, 2 * asked.rank, lr=1e-4, weight_decay=0.1)
    if asked.optimizer == "riemannian":
        return create_riemannian_optimizer(model, torch.optim.AdamW, lr=1e-4, weight_decay=0.1)
    trained = (p for p in model.parameters() if p.requires_grad)
    return torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.1)


def _step(sequences: int, length: int, model: Any, optimizer: Any, schedule: Any) -> None:
    tokens = torch.randint(0, 128000, (sequences, length))
    mask = torch.ones_like(tokens)
    for i in range(sequences):
        mask[i, length - i :] = 0
    batch = {"input_ids": tokens.cuda(), "attention_mask": mask.cuda()}
    labels = batch["input_ids"].clone()
    for i in range(sequences):
        labels[i, length - i :] = -100
    batch["labels"] = labels
    counted = batch["attention_mask"].sum().item()
    optimizer.zero_grad()
    out = model(**batch, num_items_in_batch=counted)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    out.loss.item()
    out.loss.item()


def _adapter(asked: Asked) -> Any:
    if asked.kind in ("", "FULL"):
        return None
    if asked.kind in RUN_AS:
        RUN_AS[asked.kind]()
    kind = getattr(peft.PeftType, asked.kind)
    maker = peft.PEFT_TYPE_TO_CONFIG_MAPPING[kind]
    known = inspect.signature(maker).parameters
    given: dict[str, Any] = {"task_type": "CAUSAL_LM", **asked.settings}
    if asked.targets and "target_modules" in known:
        given.setdefault("target_modules", asked.targets)
    if asked.rank and "r" in known:
        given.setdefault("r", asked.rank)
    return maker(**given)


def _osf() -> None:
    """OSF made each weight of both its parts in every forward when the rows were measured (peft 0.20): their
    allocated memory holds both parts of all layers."""
    from peft.tuners.osf.layer import Linear, OSFLayer

    if hasattr(OSFLayer, "_reconstruct_weight"):
        return
    made = OSFLayer.update_layer

    def update_layer(self: Any, name: str, effective_rank: int, **given: Any) -> None:
        made(self, name, effective_rank, **given)
        weight = self.get_base_layer().weight
        shapes = ((weight.shape[0], effective_rank), (effective_rank,), (effective_rank, weight.shape[1]))
        self.high = [torch.empty(shape, dtype=weight.dtype, device=weight.device) for shape in shapes]
        self._osf_U_high[name], _, self._osf_V_high[name] = self.high
        for unused in (self._osf_U_low_init, self._osf_S_low_init, self._osf_V_low_init):
            unused.clear()

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        low = self.osf_svd_params[self.active_adapters[0]]
        u, s, v = self.high
        weight = torch.mm(u * s.unsqueeze(0), v) + torch.mm(
            low["U_low"] * low["S_low"].unsqueeze(0), low["V_low"]
        )
        return torch.nn.functional.linear(x.to(weight.dtype), weight, self.get_base_layer().bias).to(x.dtype)

    OSFLayer.update_layer, Linear.forward = update_layer, forward


def _frod() -> None:
    """FRoD's decompositions take minutes and have no influence on a step."""
    from peft.tuners.frod import layer, model

    model._projection_from_weights = lambda matrices, alpha: torch.eye(matrices[0].shape[1])
    layer.FrodLayer._calculate_frod_u_and_lambda = lambda self, v, w: (
        torch.zeros(w.shape),
        torch.ones(w.shape[1]),
    )
    layer.Linear._offload_base_weight_to_cpu = lambda self: None


RUN_AS = {"OSF": _osf, "FROD": _frod}
"""Methods that are not run as today's peft has them."""

if __name__ == "__main__":
    train(msgspec.json.decode(sys.argv[1], type=Asked))
