"""What training frameworks do differently: which kernels are fused, how gradients are kept and summed.

These are facts about the frameworks' code; what their host work costs is in
`stepsight.overheads.frameworks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework's habits.

    ``fused_norm``, ``fused_rotary``, ``fused_mlp`` (activation and multiply), ``fused_loss``: one kernel
    instead of several. ``gradients``: the type in which micro-batches are summed. ``wgrad_accumulates``:
    the weight-gradient GEMM adds to the sum itself. ``overlaps_gradients``: gradients are reduced while the
    backward pass of the last micro-batch runs. ``host_waits``: the host waits for the device at every
    message between stages; ``lockstep``: also around the embedding and the head. ``flat_reduce``: one buffer
    for all gradients instead of buckets. ``pads_whole_vocab``: the vocabulary is padded on one rank, too.
    ``overlaps_sums``: the sum of an input's gradient over the tensor group overlaps with the weight-gradient
    GEMM.
    ``separate_gate``: a gated MLP's two first GEMMs each sum their input's gradient over the tensor group.
    ``keeps_gathered``: with sequence parallelism the gathered input of a GEMM is kept for the backward
    pass, which then need not gather it again.
    ``gathers_late``: ZeRO-2 gathers the updated parameters behind the update, not beside the forward pass.
    ``broadcasts_parameters``: ZeRO-1 returns parameters by a broadcast from every rank, not by gathers.
    ``gathers_pile_up``: with sequence parallelism the gathered input of a GEMM is dropped after it, but stays
    in the allocator until the communication stream has passed it; a host that runs ahead piles them up.
    ``sharded_loss``: the loss of a split vocabulary is used where one rank holds all of it, too.
    ``gathers_logits``: the loss sees the whole vocabulary on every tensor rank.
    ``message_launches``: host work of a message between stages, in launches.
    ``selects_products``: selective recomputation is torch's, which keeps what GEMMs and attention give;
    without it, Megatron's, which drops what lies inside attention.
    ``cuts_products``: asynchronous tensor parallelism splits GEMMs to overlap them with communication.
    ``fp8_scaling``: how fp8 casts find their scale where nothing is stated.
    ``stages_by_cost``: layers are spread over the stages of a pipeline by cost, not by number.
    ``grouped_experts``: one grouped GEMM for all experts of a rank, instead of one each.
    ``bucket_mb``: size of the buckets of gradients and parameters, unless a description states it (25 MB in
    DDP, 40 million fp32 parameters in Megatron).
    ``plain``: modules as PyTorch runs them, every operator a launch of its own (`launches`).
    """

    name: str
    fused_norm: bool = True
    fused_rotary: bool = True
    fused_mlp: bool = True
    fused_loss: bool = True
    gradients: str = "fp32"
    wgrad_accumulates: bool = False
    overlaps_gradients: bool = True
    host_waits: bool = False
    lockstep: bool = False
    overlaps_sums: bool = True
    separate_gate: bool = False
    keeps_gathered: bool = False
    gathers_late: bool = False
    broadcasts_parameters: bool = False
    flat_reduce: bool = False
    pads_vocab: bool = False
    pads_whole_vocab: bool = True
    message_launches: int = 2
    gathers_pile_up: bool = False
    sharded_loss: bool = False
    gathers_logits: bool = False
    compiled: bool = False
    selects_products: bool = True
    cuts_products: bool = True
    grouped_experts: bool = True
    plain: bool = False
    fp8_scaling: str = "delayed"
    stages_by_cost: bool = False
    bucket_mb: float = 25.0


_unfused = partial(Framework, fused_norm=False, fused_rotary=False, fused_mlp=False, fused_loss=False)
"""A framework whose norms, rotary embeddings, MLPs and loss run operator by operator."""

FRAMEWORKS = {
    f.name: f
    for f in (
        _unfused(
            "eager",
            gradients="half",
            plain=True,
        ),
        Framework(
            "megatron",
            bucket_mb=160.0,
            wgrad_accumulates=True,
            pads_vocab=True,
            grouped_experts=False,
            selects_products=False,
        ),
        Framework(
            "megatron-deepspeed",
            selects_products=False,
            gradients="half",
            overlaps_gradients=False,
            host_waits=True,
            lockstep=True,
            overlaps_sums=False,
            message_launches=8,
            flat_reduce=True,
            gathers_late=True,
            pads_vocab=True,
            pads_whole_vocab=False,
            fused_loss=False,
        ),
        Framework(
            "nanotron",
            fused_mlp=False,
            fused_loss=False,
            host_waits=True,
            cuts_products=False,
            gathers_pile_up=True,
            sharded_loss=True,
            stages_by_cost=True,
        ),
        _unfused(
            "torchtitan",
            overlaps_sums=False,
            keeps_gathered=True,
            compiled=True,
            gradients="half",
            fp8_scaling="current",
        ),
        Framework("jax", compiled=True, gradients="half", fp8_scaling="current"),
        _unfused(
            "deepspeed",
            gradients="half",
            flat_reduce=True,
            gathers_late=True,
            plain=True,
        ),
        Framework("llm-foundry", fused_mlp=False, fused_loss=False, gradients="half"),
        Framework(
            "internevo", fused_mlp=False, gradients="half", separate_gate=True, broadcasts_parameters=True
        ),
        _unfused(
            "scaling",
            overlaps_gradients=False,
            overlaps_sums=False,
            separate_gate=True,
            keeps_gathered=True,
            gradients="half",
            gathers_logits=True,
        ),
        _unfused(
            "hf",
            gradients="half",
            plain=True,
        ),
    )
}
"""eager: plain PyTorch modules; megatron: Megatron-Core and NeMo; megatron-deepspeed: the 2021–2023 fork;
jax: JAX-Toolbox, compiled throughout; scaling: Aleph Alpha's (arXiv 2311.05610; sums as in
`ColumnParallelLinear` and `ParallelSwiGLUMLP` of its repository); hf: Hugging Face transformers and
accelerate; deepspeed: a model of plain modules, as transformers writes it, wrapped by DeepSpeed's engine."""
