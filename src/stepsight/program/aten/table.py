"""From a library call to its kernels: the one table.

A call's name selects a rule; torch's own pointwise tag covers the long tail of element-wise functions;
what is left becomes one generic pass over the call's tensors, and is marked as guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stepsight.program.aten import images, movement, products, rows
from stepsight.program.aten.call import AtenCall, Lowered, Precision, TensorFact
from stepsight.program.aten.movement import (
    concat_kernel,
    copy_kernel,
    fill_kernel,
    gather_kernel,
    pointwise_kernel,
)
from stepsight.program.aten.products import attention_kernel, product
from stepsight.program.job import Kernel

Rule = Callable[[AtenCall, Precision], list[Kernel]]

_NO_KERNEL = """
    view _unsafe_view reshape t transpose permute expand slice select squeeze unsqueeze detach alias
    as_strided split split_with_sizes unbind chunk narrow lift_fresh _reshape_alias diagonal
    view_as_real view_as_complex real imag unfold set_ resize_ empty empty_like empty_strided new_empty
    new_empty_strided is_same_size detach_ squeeze_ unsqueeze_ t_ transpose_ as_strided_ swapaxes
    movedim record_stream sym_size sym_numel sym_stride sym_storage_offset expand_as _version is_pinned
    stride size dim unsafe_split _assert_async _assert_scalar _assert_tensor_metadata resize
    unsafe_chunk resize_as_ _conj _neg_view unsafe_split_with_sizes wait_tensor
    _has_compatible_shallow_copy_type _fw_primal _make_dual device layout _nested_tensor_size
    storage_offset is_contiguous numel _resize_output_ retain_grad rename_ _local_scalar_dense_
    view_dtype _dim_arange _shape_as_tensor pin_memory _pin_memory _indices _values is_coalesced
    _sparse_coo_tensor_with_dims_and_tensors _coalesced_ sparse_dim dense_dim _nnz
"""
NO_KERNEL = frozenset(_NO_KERNEL.split())
"""Views and bookkeeping: nothing runs on the GPU."""

_FILLS = """
    zero_ fill_ zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like scalar_tensor
"""
_RANDOM = """
    normal_ uniform_ bernoulli_ bernoulli randn rand randint random_ exponential_ randn_like rand_like
    randperm normal randint_like log_normal_ geometric_ cauchy_ multinomial poisson
"""
_REDUCTIONS = """
    sum mean amax amin max min any all norm linalg_vector_norm var std argmax argmin logsumexp prod
    nansum var_mean std_mean median nanmedian count_nonzero aminmax dist equal _amp_update_scale_ trace
    kthvalue mode _is_all_true _is_any_true batch_norm_stats batch_norm_backward_reduce
    batch_norm_gather_stats_with_counts
"""
_LOSSES = """
    mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss l1_loss huber_loss
    kl_div soft_margin_loss
"""
_POINTWISE_NAMES = """
    floor_divide floor_divide_ fmod remainder native_dropout_backward where lerp masked_fill
    masked_fill_ tril triu tril_ triu_ arange roll flip repeat constant_pad_nd nan_to_num one_hot
    linspace eye glu glu_backward lift_fresh_copy isin bucketize index_fill index_fill_ select_scatter
    slice_scatter diag_embed diagonal_backward unfold_backward reflection_pad1d reflection_pad2d
    reflection_pad2d_backward replication_pad2d pixel_shuffle pixel_unshuffle repeat_interleave tile
    vander _fused_dropout complex polar searchsorted _softmax_mask logit_backward prelu _prelu_kernel
    _prelu_kernel_backward masked_scatter masked_scatter_ diff channel_shuffle cross linalg_cross
    tril_indices triu_indices im2col col2im renorm _weight_norm_interface
    _weight_norm_interface_backward log_sigmoid_forward log_sigmoid_backward _fake_quantize_learnable
    binary_cross_entropy_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward
    rrelu_with_noise _cast_Half _cast_Float _cast_BFloat16 rot90 bincount cdist leaky_relu_backward
    hardtanh_backward hardswish_backward hardsigmoid_backward hardshrink_backward softshrink_backward
    elu_backward softplus_backward silu_backward gelu_backward mish_backward threshold_backward
    tanh_backward sigmoid_backward hardswish hardswish_ hardsigmoid mish softplus elu celu selu relu6
    erfinv leaky_relu leaky_relu_ clamp clamp_ logical_not masked_fill_backward
    soft_margin_loss_backward kl_div_backward glu_jvp addcmul addcdiv lerp_ logaddexp rsub isclose
    nan_to_num_ angle polygamma rope _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _pack_padded_sequence batch_norm_elemt
    batch_norm_backward_elemt
"""
_POINTWISE = frozenset(_POINTWISE_NAMES.split())
_ATTENTION = """
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention
"""
_ATTENTION_BACKWARD = " ".join(f"{name}_backward" for name in _ATTENTION.split())
_BATCH_NORMS = """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm
    _batch_norm_with_update _batch_norm_no_update
"""
_POOLS = """
    max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
    max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward avg_pool1d upsample_bilinear2d
    upsample_bilinear2d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bicubic2d
    upsample_bicubic2d_backward upsample_linear1d upsample_nearest1d upsample_nearest3d
    upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_2d_backward
    _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward
"""

_TABLE: tuple[tuple[str, Rule], ...] = (
    ("mm", products.mm),
    ("addmm _addmm_activation", lambda c, p: [product(c.arguments["mat1"], c.arguments["mat2"], p)]),
    ("bmm", lambda c, p: [product(c.on_gpu[0], c.on_gpu[1], p, "bmm")]),
    ("baddbmm", lambda c, p: [product(c.arguments["batch1"], c.arguments["batch2"], p, "bmm")]),
    ("_scaled_mm _int_mm", lambda c, p: [product(c.on_gpu[0], c.on_gpu[1], p)]),
    ("mv addmv", products.mv),
    ("dot vdot", lambda c, p: [rows.reduce_kernel(c.on_gpu[0], 1, "dot")]),
    ("_grouped_mm _scaled_grouped_mm", products.grouped_mm),
    ("_cudnn_rnn", products.recurrent),
    ("_cudnn_rnn_backward", products.recurrent_backward),
    (_ATTENTION, lambda c, p: [attention_kernel("attention", *_query_and_key(c), c.name)]),
    (_ATTENTION_BACKWARD, lambda c, p: [attention_kernel("attention_backward", *_query_and_key(c), c.name)]),
    ("convolution _convolution cudnn_convolution convolution_overrideable", images.convolution),
    ("convolution_backward convolution_backward_overrideable", images.convolution_backward),
    (_POOLS, images.pool),
    ("_softmax _log_softmax _safe_softmax", rows.softmax),
    ("_softmax_backward_data _log_softmax_backward_data", rows.softmax_backward),
    ("native_layer_norm _fused_rms_norm", rows.layer_norm),
    ("native_layer_norm_backward _fused_rms_norm_backward", rows.layer_norm_backward),
    ("native_group_norm", rows.group_norm),
    ("native_group_norm_backward", rows.group_norm_backward),
    (_BATCH_NORMS, rows.batch_norm),
    ("native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward",
     lambda c, p: [rows.by_channels("batch_norm_backward", c.on_gpu[1])]),
    ("nll_loss_forward nll_loss2d_forward", lambda c, p: [rows.by_classes("nll_loss", c.on_gpu[0])]),
    ("nll_loss_backward nll_loss2d_backward",
     lambda c, p: [rows.by_classes("nll_loss_backward", c.on_gpu[1])]),
    ("native_dropout", lambda c, p: [rows.dropout_kernel(c.on_gpu[0])]),
    ("cumsum cumsum_ cumprod logcumsumexp cummax cummin", rows.scan),
    (_REDUCTIONS, rows.reduction),
    (_LOSSES, rows.loss),
    ("cat stack", lambda c, p: [concat_kernel(c.made_on_gpu[0], max(len(c.on_gpu), 1))]),
    ("_chunk_cat all_gather_copy_in split_with_sizes_copy chunk_cat", movement.packed_copy),
    ("block_diag", movement.block_diagonal),
    ("_fft_c2c _fft_r2c _fft_c2r", movement.fourier),
    ("embedding", lambda c, p: [gather_kernel(c.arguments["weight"], c.arguments["indices"].elements)]),
    ("embedding_dense_backward", movement.embedding_backward),
    ("gather index_select index take _unsafe_index masked_select sparse_mask", movement.picked),
    ("_coalesce", movement.coalesced),
    ("_to_dense", movement.to_dense),
    ("index_put index_put_ _index_put_impl_ _unsafe_index_put", movement.put),
    ("scatter scatter_ scatter_add scatter_add_ index_add index_add_ index_copy index_copy_ scatter_reduce "
     "scatter_reduce_", movement.scattered),
    ("sort topk argsort _unique2 unique_consecutive unique_dim msort histc", movement.sort),
    ("nonzero", movement.nonzero),
    ("slice_backward select_backward", movement.padded_gradient),
    (_FILLS, lambda c, p: [fill_kernel((c.made_on_gpu or c.on_gpu)[0])]),
    (_RANDOM, lambda c, p: [pointwise_kernel(c.name, (), (c.made_on_gpu or c.on_gpu)[0])]),
)  # fmt: skip
"""Calls that launch the same kernels, and their rule."""
RULES: Mapping[str, Rule] = {name: rule for names, rule in _TABLE for name in names.split()}


def _query_and_key(call: AtenCall) -> tuple[TensorFact, TensorFact, bool]:
    return call.arguments["query"], call.arguments["key"], bool(call.get("is_causal", False))


def lower(call: AtenCall, precision: Precision) -> Lowered:
    """The kernels that a call launches."""
    if call.name in ("_local_scalar_dense", "item"):
        read = Kernel.of("copy_d2h", operator="item", bytes=float(call.inputs[0].bytes))
        return Lowered((read,), blocks_host=True)
    if call.name == "_linalg_check_errors":  # the host looks whether a factorisation failed
        checked = rows.reduce_kernel(call.inputs[0], 1, "any")
        return Lowered((checked, Kernel.of("copy_d2h", operator="item", bytes=1.0)), blocks_host=True)
    if call.name in NO_KERNEL or not (call.on_gpu or call.made_on_gpu):
        return Lowered()
    if call.name in ("_to_copy", "copy_", "copy", "clone", "contiguous", "_copy_from"):
        return _copied(call)
    if all(t.elements == 0 for t in call.made_on_gpu or call.on_gpu):
        return Lowered()
    if call.name.startswith(("_foreach", "_fused_ada", "_fused_sgd", "_amp_foreach")):
        return Lowered(tuple(movement.multi_tensor(call, precision)))
    rule = RULES.get(call.name)
    if rule is not None and not (call.name in ("max", "min") and call.overload == "other"):
        return Lowered(tuple(rule(call, precision)))
    if call.pointwise or call.name in _POINTWISE:
        return Lowered((_element_wise(call),))
    return Lowered((_one_pass(call),), guessed=True)


def _copied(call: AtenCall) -> Lowered:
    """Copies between and on devices. Without non_blocking the host waits for one that leaves or enters."""
    source = call.inputs[-1] if call.name == "copy_" else call.inputs[0]
    target = call.inputs[0] if call.name == "copy_" else call.outputs[0]
    waits = not call.get("non_blocking", False)
    if source.device != "cuda" and target.device == "cuda":
        if source.elements <= 1 and call.name == "copy_":
            return Lowered((Kernel.of("fill", target.dtype, bytes=target.bytes),))
        return Lowered((Kernel.of("copy_h2d", target.dtype, bytes=target.bytes),), blocks_host=waits)
    if source.device == "cuda" and target.device != "cuda":
        return Lowered((Kernel.of("copy_d2h", target.dtype, bytes=source.bytes),), blocks_host=waits)
    if target.device != "cuda" or target.elements == 0:
        return Lowered()
    return Lowered((copy_kernel(source, target),))


def _element_wise(call: AtenCall) -> Kernel:
    """One pass. A result given to the call (out=) is written, not read."""
    out = (call.made_on_gpu or call.on_gpu)[0]
    given = call.arguments.get("out")
    inputs = [t for t in call.on_gpu if t is not given]
    name = call.name if call.name in ("div_", "bernoulli_") else call.name.rstrip("_")
    return pointwise_kernel(name, inputs, out)


def _one_pass(call: AtenCall) -> Kernel:
    """Unknown: its tensors read once and its results written once."""
    out = (call.made_on_gpu or call.on_gpu)[0]
    return Kernel.of(
        "other", out.dtype, operator=call.name, flops=0.0,
        read_bytes=float(sum(t.bytes for t in call.on_gpu)),
        write_bytes=float(sum(t.bytes for t in call.made_on_gpu)),
    )  # fmt: skip
