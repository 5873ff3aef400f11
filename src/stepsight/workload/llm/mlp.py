"""A layer's MLP on one rank: plain, or a mixture of experts."""

from __future__ import annotations

from stepsight.constants import area
from stepsight.dtypes import dtype_bytes
from stepsight.overheads.frameworks import profile_of
from stepsight.program.job import Copies, Kernel
from stepsight.program.variants import Role
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.block import (
    Block,
    Message,
    Module,
    adapter,
    input_bytes,
    keeps_products,
    linear,
    products,
    shared_over,
    stored_less,
    tensor_messages,
)
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.model import Experts
from stepsight.workload.llm.operators import ForwardBackward

OVERHEADS = area("overheads")
SCALE_LAUNCHES = 2
"""Further launches of each expert's product in fp8: both operands' scales are put into the order that it
wants (Transformer Engine, MXFP8)."""
ROUTING_OPERATORS = {
    "router": (38, 24),
    "dispatcher": (34, 16),
    "fused_routing": (24, 12),
    "latent_rotary": (40, 30),
}
"""Small operators of a layer of experts, forward and backward.

router: Megatron-Core's (core_r0.12, moe/router.py) besides its GEMM, softmax and top-k: casts to fp32 and
back, probabilities and map of the chosen experts (zeros, scatter, bool), the auxiliary loss (scores, their
top-k and map, sums, product, scale) and its log.
dispatcher: its token dispatcher's (moe/token_dispatcher.py): tokens counted by expert and rank (sums, slices,
an all_gather), four copies to the host, indices of the permutation, the probabilities' own exchange, what
adds up a token's results.
fused_routing: what is left of both where router and permutation are fused (Transformer Engine's
fused_topk_with_score_function and moe_permute): counts and their copies.
latent_rotary: unfused rotary positions of queries and of the shared key in multi-latent attention: cosines,
sines, halves interleaved, rotated and joined, keys expanded and joined with their other part."""


def mlp_block(c: LanguageConfig, ffn: int) -> Block:
    m, t, f = c.model, c.layout.tensor, c.framework
    dtype, e, n = c.training.dtype, dtype_bytes(c.training.dtype), float(c.tokens)
    block = Block.begin(c, "mlp")
    both, modules, again = block.both, block.modules, block.again
    into = linear(c, n, (2 if m.gated else 1) * ffn / t, m.hidden, cast_input=False)
    both += into
    both += adapter(c, "mlp", n, (2 if m.gated else 1) * ffn / t, m.hidden)
    if c.writes_out_gelu:
        act = ops.tanh_gelu(dtype, n * ffn / t, wide=c.training.half and not c.training.master_weights)
    else:
        fused = f.fused_mlp or c.training.compiled
        act = ops.activation(dtype, n, ffn / t, gated=m.gated, fused=fused, bias=m.bias)
    made = input_bytes(c, "mlp") * n * ffn / t
    act.kept_bytes += made - e * n * ffn / t
    act.kept_bytes -= stored_less(c) * n * (2 if m.gated else 1) * ffn / t
    both += act
    modules["mlp_act"] = Module(tuple(act.forward), made)
    again += act.forward if keeps_products(c) else []
    out = linear(c, n, m.hidden, ffn / t, cast_input=False)
    both += out
    modules["mlp"] = Module((*into.forward, *act.forward, *out.forward), act.kept_bytes)
    both += adapter(c, "mlp", n, m.hidden, ffn / t)
    if keeps_products(c) and m.gated:  # every other product: of a gated pair the second
        again.append(ops.linear(c.training.product_dtype, dtype, n, ffn / t, m.hidden).forward[-1])
    block.end(c, into, out, inputs=2 if m.gated and f.separate_gate else 1)
    block.selected_bytes = 0.5 * e * n * (2 * ffn + m.hidden) / t
    return block


def mixture_block(c: LanguageConfig, x: Experts) -> Block:
    """Router, exchange of tokens, the rank's own experts, exchange back; shared experts concurrent them."""
    m, s = c.model, c.layout
    dtype, e = c.training.dtype, dtype_bytes(c.training.dtype)
    spread_out = s.expert > 1
    own = c.tokens / (s.tensor if spread_out else shared_over(c))
    rows = own if spread_out else float(c.tokens)  # experts split like an MLP see the tokens of all ranks
    ffn = x.ffn / (s.expert_tensor if spread_out else s.tensor)
    both = ops.norm(m.norm, dtype, own, m.hidden, fused=c.training.fused_norm)
    modules = {"layernorm": Module(tuple(both.forward), e * c.tokens / shared_over(c) * m.hidden)}
    both.kept_bytes += modules["layernorm"].bytes
    router = ops.linear(dtype, dtype, rows, x.count, m.hidden)
    both += router
    both += ForwardBackward(
        [
            Kernel.of("softmax", "fp32", rows=rows, cols=x.count),
            Kernel.of("sort", "int64", elements=rows * x.active),
        ],
        [Kernel.of("softmax_backward", "fp32", rows=rows, cols=x.count)],
    )
    routed, before = rows * x.active, both.kept_bytes
    move = ops.stream("permute", dtype, routed * m.hidden, e, e)
    both += ForwardBackward([move], [move], input_bytes(c, "mlp") * routed * m.hidden)
    local = max(1, x.count // s.expert)
    each = routed * x.load * s.expert_tensor / local
    fused = c.training.fused_experts
    into = _expert_product(c, local, each, (2 if m.gated else 1) * ffn, m.hidden)
    out = _expert_product(c, local, each, m.hidden, ffn, cast_input=False)
    act = ops.activation(dtype, each * local, ffn, gated=m.gated, fused=True, bias=False)
    if fused:  # the products' own kernels apply the activation and cast what they write
        act = ForwardBackward(kept_bytes=act.kept_bytes)
        out.backward = [k for k in out.backward if k.kind.variant != "cast_fp8"]
        into.backward = [k for k in into.backward if k.kind.variant != "cast_fp8"]
    elif x.bias:
        act = _clamped(dtype, each * local * ffn)
    made = input_bytes(c, "mlp") * each * local * ffn
    act.kept_bytes += made - e * each * local * ffn
    act.kept_bytes -= stored_less(c) * each * local * (2 if m.gated else 1) * ffn
    for part in (into, act, out):
        both += part
    modules["moe_act"] = Module(tuple(act.forward), made)
    both += _expert_bias(routed * m.hidden) if x.bias else ForwardBackward()
    both += ForwardBackward(
        [move, ops.stream("mul", dtype, routed * m.hidden, 2 * e, e)],
        [move, ops.stream("mul", dtype, routed * m.hidden, 2 * e, e)],
        0.0 if c.framework.weights_inside_experts else e * routed * m.hidden,
    )
    inside = both.kept_bytes - before
    experts = (move, *into.forward, *act.forward, *out.forward, move)
    again = [k for k in both.forward if k not in router.forward] if keeps_products(c) else []
    selected = 0.5 * e * rows * x.count
    forward: list[Message] = []
    backward: list[Message] = []
    if spread_out and s.expert_dispatch == "each" and local > 1:  # received by rank, sorted by expert
        both += ForwardBackward([move, move], [move, move])
    if spread_out:
        selected += e * routed * (1 + x.load) * m.hidden
        forward, backward = _exchanges(c, x, e * routed * m.hidden * x.load, into, out)
        if s.expert_tensor > 1:  # tokens of all parts of an expert are gathered, its results summed
            whole = e * routed * m.hidden * x.load * s.expert_tensor
            around = [Message("expert tensor", k, whole, dtype) for k in ("all_gather", "reduce_scatter")]
            forward, backward = [*forward, *around], [*backward, *around]
    else:
        forward, backward = tensor_messages(c, c.tokens * m.hidden, ForwardBackward(), ForwardBackward())
    modules["moe"] = Module(experts, inside, tuple(forward) if spread_out else ())
    if x.shared_ffn:
        shared = mlp_block(c, x.shared_ffn)
        shared.both.forward = [k for k in shared.both.forward if "norm" not in k.family]
        shared.both.backward = [k for k in shared.both.backward if "norm" not in k.family]
        both += shared.both
        modules["shared_experts"] = shared.modules["mlp"]
        selected += shared.selected_bytes
        again += [k for k in shared.again if "norm" not in k.family]
        forward, backward = [*forward, *shared.forward], [*backward, *shared.backward]
    else:
        both += ops.residual(dtype, own * m.hidden, 0.0, fused=True)
    more = _routing_launches(c)
    if c.training.quantised and not _grouped(c):
        more = more[0] + 2 * local * SCALE_LAUNCHES, more[1] + 4 * local * SCALE_LAUNCHES
    return Block(
        both,
        forward,
        backward,
        again,
        selected,
        more,
        modules,
        waits=int(c.framework.reads_counts and not x.capacity_factor),
    )


def _routing_launches(c: LanguageConfig) -> tuple[int, int]:
    """What the host does for a layer of experts beyond one launch per kernel, forward and backward.

    A small operator costs the host T1 to T4 of one, a launch of the profile with its modules more.
    """
    if c.framework.plain or c.training.compiled or c.training.fused_experts:
        return 0, 0
    parts = ["fused_routing"] if c.framework.fused_routing else ["router", "dispatcher"]
    parts += ["latent_rotary"] if c.model.latent else []
    profile = profile_of(c.host_profile)
    forward, backward = (
        round(sum(ROUTING_OPERATORS[part][way] for part in parts) * min(1.0, OVERHEADS.REFERENCE_US / us))
        for way, us in enumerate((profile.forward_us, profile.backward_us))
    )
    return forward, backward


def _grouped(c: LanguageConfig) -> bool:
    """Whether one kernel computes a product for all of a rank's experts."""
    return c.framework.grouped_experts or c.training.fused_experts


def _expert_product(
    c: LanguageConfig, experts: int, tokens: float, out: float, into: float, *, cast_input: bool = True
) -> ForwardBackward:
    """A product of each of a rank's experts: one kernel for all of them, or one after the other."""
    grouped = _grouped(c)
    one = linear(c, tokens, out, into, batch=experts if grouped else 1, cast_input=cast_input)
    times = 1 if grouped else experts
    return ForwardBackward(one.forward * times, one.backward * times)


def _clamped(dtype: str, elements: float) -> ForwardBackward:
    """A clamped gated activation, operator by operator: two clamps, scale, sigmoid, two products, an offset,
    the router's weight in fp32 and the cast back; half as many again backward."""
    return ForwardBackward(
        [ops.stream("clamped glu", dtype, elements, 24, 18)],
        [ops.stream("clamped glu backward", dtype, elements, 36, 24)],
        6 * elements,
    )


def _expert_bias(elements: float) -> ForwardBackward:
    """The experts' output biases, weighted by the router in fp32: product, sum, concatenation, cast."""
    return ForwardBackward(
        [ops.stream("expert bias", "fp32", elements, 14, 14)],
        [ops.stream("expert bias backward", "fp32", elements, 20, 20)],
    )


def _exchanges(
    c: LanguageConfig, x: Experts, bytes_: float, into: ForwardBackward, out: ForwardBackward
) -> tuple[list[Message], list[Message]]:
    """Tokens to the ranks of their experts and back.

    ``expert_dispatch = "once"``: a token goes once to a node, and once to a rank, that holds several of its
    experts. ``expert_overlap``: concurrent with the experts' products, or with all that another micro-batch
    computes.
    """
    s, dtype = c.layout, c.training.dtype
    copies = Copies(x.active, x.groups, x.active_groups) if s.expert_dispatch == "once" else None
    concurrent: list[tuple[Kernel, ...]] = [()] * 4
    if s.expert_overlap == "experts":
        concurrent = [products(into.forward, None), products(out.forward, None),
                  products(out.backward, Role.DGRAD) + products(out.backward, Role.WGRAD),
                  products(into.backward, Role.DGRAD) + products(into.backward, Role.WGRAD)]  # fmt: skip
    hidden = s.expert_overlap == "all"
    first, back, first_grad, back_grad = (
        Message("expert", "all_to_all", bytes_, dtype, b, hidden, copies) for b in concurrent
    )
    return [first, back], [first_grad, back_grad]
