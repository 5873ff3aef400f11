"""The dispatch mode: CPU tensors are real, CUDA tensors have sizes and no data, calls are written down.

Results are as a GPU leaves them where torch's fake tensors do not say: memory formats of convolutions (a
torch without cuDNN makes every result contiguous), and operators that cannot run without data: a loss or an
operator of an extension may have a kernel for the CPU and no rule for sizes; its result is thrown away.
"""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from stepsight.capturing.calls import (
    CallRecord,
    CollectiveRecord,
    Facts,
    Record,
    SyncRecord,
    WaitRecord,
    mapped,
    tensors_in,
)
from stepsight.capturing.device import CUDA, listen, stream_number
from stepsight.capturing.memory import Liveness, Workspaces
from stepsight.capturing.tensors import on_gpu, only_gpu
from stepsight.capturing.values import Values, follow_masks, followed, most_frequent
from stepsight.program.aten.call import MOST_FREQUENT
from stepsight.program.aten.images import is_channels_last

LARGE_BYTES = 1 << 20
"""Parameters on the CPU from this size on have no data either, so that large models build without memory."""
_SAME_TENSOR = ("wait_tensor", "_wrap_tensor_autograd")
"""Functional operators that hand their argument on; the second (torch 2.13) marks one that is under way."""
FUNCTIONAL = ("_c10d_functional::", "c10d_functional::", "c10d::")
"""Namespaces of collectives that are operators of the dispatcher."""
MARK = "stepsight#"
"""Prefix of the profiler ranges that tie recorded calls to host operators."""

_FACTORY_NAMES = """empty zeros ones full rand randn empty_strided new_empty new_zeros new_ones new_full
    normal eye empty_like zeros_like ones_like rand_like randn_like"""
_FACTORIES = frozenset(_FACTORY_NAMES.split())
_QUERIES = frozenset(("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_same_size", "layout"))
_NEED_DATA = (
    NotImplementedError,
    UnsupportedOperatorException,
    DynamicOutputShapeException,
    DataDependentOutputException,
)
_STEADY = frozenset(("_amp_update_scale_",))
"""What they write stays as it is in a healthy run: a loss scale after steps without overflow."""
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_DEVICE = torch.ops.prim.device.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class CompiledRegions:
    """Which calls a script compiled: every outermost run of a compiled function is a graph with a number from
    1 on; 0 is none. Autograd numbers its nodes as the forward pass makes them, so the numbers handed out
    while a compiled function ran identify its nodes in the backward pass. ``cuda_graphs`` are those that
    Inductor records as CUDA graphs and replays."""

    def __init__(self) -> None:
        self._depth = 0
        self._number = 0
        self._start = 0
        self._starts: list[int] = []
        self._ends: list[tuple[int, int]] = []
        self.cuda_graphs: set[int] = set()

    def enter(self, *, cuda_graph: bool = False) -> None:
        if not self._depth:
            self._number += 1
            if cuda_graph:
                self.cuda_graphs.add(self._number)
            self._start = torch.autograd._get_sequence_nr()
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._starts.append(self._start)
            self._ends.append((torch.autograd._get_sequence_nr(), self._number))

    def graph(self, node: Any) -> int:
        """The graph of a call that runs now, under this autograd node or none."""
        if self._depth:
            return self._number
        if node is None or not self._starts:
            return 0
        number = node._sequence_nr()
        at = bisect_right(self._starts, number) - 1
        if at < 0:
            return 0
        end, graph = self._ends[at]
        return graph if number < end else 0


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Runs a script's calls without data on the GPU, and writes them down while ``recording``."""

    def __init__(self, values: Values, liveness: Liveness, workspaces: Workspaces) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self.values, self.liveness, self.workspaces = values, liveness, workspaces
        self.facts = Facts(liveness.number)
        self.functional: Callable[[Recorder, Any, Any, Any, Any], None] | None = None
        """Called with functional collectives: (recorder, operator, arguments, keywords, result)."""
        self.recording = False
        self.regions = CompiledRegions()
        self.gpu_calls = 0
        self.records: list[Record] = []
        self._marks = 0
        self._composite: dict[Any, bool] = {}
        self._process = os.getpid()
        self._lock = threading.RLock()
        listen(self.synchronised)

    # What is written down

    def synchronised(self, what: str, stream: int, event: int) -> None:
        if self.recording:
            self.records.append(SyncRecord(what, stream, event))

    def waited(self, mark: int) -> None:
        if self.recording and mark >= 0:
            self.records.append(WaitRecord(stream_number(), mark))

    def communicated(self, record: CollectiveRecord) -> int:
        """A collective was called; the mark by which it is waited for (-1 while not recording)."""
        if not self.recording:
            return -1
        record.mark = self._new_mark()
        record.in_backward = torch._C._current_autograd_node() is not None
        self.records.append(record)
        with torch._C._profiler._RecordFunctionFast(f"{MARK}{record.mark}"):
            pass
        return record.mark

    def _new_mark(self) -> int:
        self._marks += 1
        return self._marks

    # Dispatch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if os.getpid() != self._process:  # a data loader's worker: it has no GPU
            return func(*args, **kwargs)
        if any(t is not FakeTensor and _unwraps_itself(t) for t in types):
            return NotImplemented  # a DTensor and its like: what it holds comes here afterwards
        if func is _DEVICE:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        name = func._schema.name.partition("::")[2]
        if name in _QUERIES:
            with self.fake:
                return func(*args, **kwargs)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        asked = kwargs.get("device")
        if asked is not None and on_gpu(asked):
            kwargs = {**kwargs, "device": only_gpu(asked)}
        if name == "to" and asked is None:  # composite, not taken apart in inference mode
            asked = next((a for a in args if isinstance(a, torch.device)), None)
        tensors = list(tensors_in(args, kwargs))
        fake = [t for t in tensors if isinstance(t, FakeTensor)]
        if not fake and not (asked is not None and on_gpu(asked)):
            return self._on_cpu(func, name, args, kwargs)
        if self.functional is not None and func._schema.name.startswith(FUNCTIONAL):
            return self._functional(func, args, kwargs)
        if self._is_composite(func):  # not taken apart above: inference mode, or inside another dispatch
            with self:  # by C++, as on a GPU: torch's rules in Python differ (dropout copies)
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        with self._lock:
            return self._on_gpu(func, name, args, kwargs, tensors)

    def _is_composite(self, func: Any) -> bool:
        known = self._composite.get(func)
        if known is None:
            has = torch._C._dispatch_has_kernel_for_dispatch_key
            # silu_backward and its like are composite, but every device has a kernel of its own
            known = bool(has(func.name(), "CompositeImplicitAutograd") and not has(func.name(), "CPU"))
            self._composite[func] = known
        return known

    def _functional(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A collective that is an operator: its result without data, and a note of what it sends."""
        same = func._schema.name.endswith(_SAME_TENSOR)
        out = args[0] if same else self._without_data(func, args, kwargs)
        for t in tensors_in(out):
            if _is_cuda(t):
                self.liveness.seen(t, stream_number())
        if self.functional is not None:
            self.functional(self, func, args, kwargs, out)
        return out

    def _on_cpu(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("_pin_memory", "pin_memory"):
            return args[0]
        if name == "is_pinned":  # DDP asserts it of its own buffers
            return True
        if name in _FACTORIES and self._large_parameter(name, args, kwargs):
            with self.fake:
                out = func(*args, **kwargs)
            if name in ("zeros", "ones"):
                self.values.filled(out, name == "ones")
            return out
        return func(*args, **kwargs)

    def _large_parameter(self, name: str, args: Any, kwargs: Any) -> bool:
        """Uninitialised memory, or anything that a module makes for itself while it is built."""
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        device = kwargs.get("device")
        if not dtype.is_floating_point or (device is not None and torch.device(device).type != "cpu"):
            return False
        size = next((a for a in args if isinstance(a, list | tuple)), None)
        if size is None:
            like = next((a for a in args if isinstance(a, torch.Tensor)), None)
            if like is None or like.device.type != "cpu":
                return False
            size = like.shape
        count = dtype.itemsize
        for extent in size:
            count *= extent if isinstance(extent, int) else 1
        return count >= LARGE_BYTES and (name in ("empty", "empty_strided") or _module_being_built())

    def _on_gpu(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        cpu_only = all(not _is_cuda(t) for t in tensors) and not on_gpu(kwargs.get("device"))
        if cpu_only or not self.recording:
            out = self._run(func, name, args, kwargs, tensors)
            self._account(name, args, out, on_gpu_call=not cpu_only)
            return out
        mark = self._new_mark()
        node = torch._C._current_autograd_node()
        before = self.facts.call(func, args, kwargs, node.name() if node is not None else "")
        if name == "embedding_dense_backward" and (indices := self.values.of(args[1])) is not None:
            before = replace(before, arguments={**before.arguments, MOST_FREQUENT: most_frequent(indices)})
        with torch._C._profiler._RecordFunctionFast(f"{MARK}{mark}"):
            out = self._run(func, name, args, kwargs, tensors)
        self._account(name, args, out, on_gpu_call=True)
        call = replace(before, outputs=tuple(self.facts.tensor(t) for t in tensors_in(out)))
        graph, stream = self.regions.graph(node), stream_number()
        self.records.append(CallRecord(mark, call, stream, graph, graph in self.regions.cuda_graphs))
        return out

    def _account(self, name: str, args: Any, out: Any, *, on_gpu_call: bool) -> None:
        """Memory that the call's results, and the library under it, take."""
        stream = stream_number()
        if on_gpu_call:
            self.gpu_calls += 1
            self.liveness.calls += 1
            for size in self.workspaces.kept(name, stream):
                self.liveness.kept(size, stream)
        for t in tensors_in(out):
            if _is_cuda(t):
                self.liveness.seen(t, stream)
        if name in ("resize_", "set_", "resize_storage_bytes_", "resize_as_"):
            for t in tensors_in(args):
                if _is_cuda(t):
                    self.liveness.resized(t, stream)
        if on_gpu_call:
            self.liveness.passing(self.workspaces.passing(name, args, out), stream)

    def _run(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        values = self.values
        if name == "_local_scalar_dense":
            return values.item(args[0])
        if name == "_to_copy" and _leaves_gpu(args[0], kwargs):
            return values.read(args[0], kwargs.get("dtype"))
        if name == "_to_copy" and not isinstance(args[0], FakeTensor):
            return self._moved_in(args[0], kwargs)
        if name == "copy_" and not isinstance(args[0], FakeTensor):
            known = values.of(args[1])
            if known is not None:
                args[0].copy_(known)
            else:
                values.read(args[1])
            return args[0]
        if name == "equal":
            known = [values.of(t) for t in tensors]
            return func(*known) if all(v is not None for v in known) else True
        if name in ("_pin_memory", "pin_memory"):
            return args[0]
        if name == "_pack_padded_sequence":
            return self._packed(func, *args)
        computed = values.computed(func, name, args, kwargs, tensors)
        if values.depends_on_values(name, args):
            if computed is None:
                return values.assumed_result(name, args, kwargs, self.fake)
            return mapped(computed, self._placed)
        out = self._without_data(func, args, kwargs)
        with self.fake:
            out = as_on_gpu(name, args, out, self.facts)
        follow_masks(name, args, out)
        if name == "histc" and computed is None:
            values.counted(args[0], out.numel(), out)
        if computed is not None:
            for made, value in zip(tensors_in(out), tensors_in(computed), strict=False):
                values.learn(made, value, computed=True)
        elif name == "_to_copy":
            values.copied(args[0], out)
        elif func._schema.is_mutable and name not in _STEADY:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for t in tensors_in(value):
                        values.forget(t)
        return out

    def _without_data(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func._schema.name in MIXED:
            made = tried_on_cpu(func, args, kwargs, self.values)
            if made is not None:
                return mapped(made, self._placed)
        fake_args, fake_kwargs = mapped(args, self._faked), mapped(kwargs, self._faked)
        try:
            with self.fake:
                if func._schema.name.endswith("::clone") and fake_args[0].is_sparse:  # torch's has no values
                    return by_rule("clone", fake_args)
                return func(*fake_args, **fake_kwargs)
        except _NEED_DATA:
            with self.fake:
                ruled = by_rule(func._schema.name.partition("::")[2], fake_args)
            if ruled is not None:
                return ruled
            out = tried_on_cpu(func, args, kwargs, self.values)
            if out is None:
                raise
            return mapped(out, self._placed)

    def _packed(self, func: Any, padded: torch.Tensor, lengths: torch.Tensor, first: bool) -> Any:
        """Sequences end to end: lengths lie on the host, so the sizes are known."""
        known = self.values.of(lengths)
        rows = torch.zeros(*padded.shape[:2], 1)
        data, sizes = func(rows, lengths if known is None else known, first)
        with self.fake:
            made = torch.empty((data.shape[0], *padded.shape[2:]), dtype=padded.dtype, device=CUDA)
        return made, sizes

    def _faked(self, t: torch.Tensor) -> torch.Tensor:
        return t if isinstance(t, FakeTensor) else self.fake.from_tensor(t, static_shapes=True)

    def _moved_in(self, t: torch.Tensor, kwargs: Any) -> torch.Tensor:
        """A real tensor copied to the GPU (not through the converter, which would keep a reference)."""
        dtype = kwargs.get("dtype") or t.dtype
        layout = kwargs.get("memory_format")
        like = torch.empty_like(t.to("meta"), dtype=dtype, **({"memory_format": layout} if layout else {}))
        with self.fake:
            out = torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=CUDA)
        if not t.is_meta:
            self.values.learn(out, t.detach().to(dtype, copy=True) if followed(t) else None)
        return out

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        with self.fake:
            out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CUDA)
        self.values.learn(out, value)
        return out


def _unwraps_itself(kind: Any) -> bool:
    return getattr(kind, "__torch_dispatch__", _NO_DISPATCH) is not _NO_DISPATCH


def _is_cuda(t: torch.Tensor) -> bool:
    return bool(isinstance(t, FakeTensor) and t.fake_device.type == "cuda")


def _leaves_gpu(t: torch.Tensor, kwargs: Any) -> bool:
    device = kwargs.get("device")
    return _is_cuda(t) and device is not None and torch.device(device).type == "cpu"


def _module_being_built(depth: int = 40) -> bool:
    """Whether some frame above is the constructor of a module or initialises its weights."""
    frame = sys._getframe(2)
    while frame is not None and depth:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and frame.f_code.co_name in _BUILDING:
            return True
        frame, depth = frame.f_back, depth - 1  # type: ignore[assignment]
    return False


_BUILDING = frozenset(("__init__", "reset_parameters", "_init_weights", "init_weights", "post_init", "build"))


_IMAGE_AND_WEIGHT = {"convolution": (0, 1), "convolution_backward": (1, 2)}


def as_on_gpu(name: str, args: Any, out: Any, facts: Facts) -> Any:
    """Results of a convolution on the GPU, channels_last where the image or the weight is."""
    places = _IMAGE_AND_WEIGHT.get(name)
    if places is None or len(args) <= max(places):
        return out
    image, weight = (args[place] for place in places)
    if not isinstance(image, FakeTensor) or image.fake_device.type != "cuda":
        return out
    if not any(is_channels_last(facts.tensor(t)) for t in (image, weight)):
        return out
    if isinstance(out, torch.Tensor):
        return _last(out)
    return tuple(_last(t) for t in out)


def _last(t: torch.Tensor | None) -> torch.Tensor | None:
    return t if t is None or t.dim() != 4 else t.to(memory_format=torch.channels_last)


MOST_BYTES = 1 << 28
"""Larger inputs are not made for this."""

MIXED = frozenset(("aten::_ctc_loss", "aten::_ctc_loss_backward"))
"""They take lengths from the host together with tensors of the GPU, which torch's fake tensors refuse."""


def by_rule(name: str, args: Any) -> Any:
    """Results of operators that only GPUs have, without data; None without a rule. Runs in fake mode."""
    if name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
        return False
    if name == "_thnn_fused_gru_cell":
        hidden = args[2]
        return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], 5 * hidden.shape[1])
    if name == "_thnn_fused_gru_cell_backward":
        grad, biases = args[0], args[2]
        gates = [grad.new_empty(grad.shape[0], 3 * grad.shape[1]) for _ in range(2)]
        bias = [grad.new_empty(3 * grad.shape[1]) if biases else None for _ in range(2)]
        return *gates, torch.empty_like(grad), *bias
    if name == "_cudnn_rnn_backward":
        data, weights, hidden, cell = args[0], args[1], args[4], args[5]
        state = None if cell is None else torch.empty_like(cell)
        return torch.empty_like(data), torch.empty_like(hidden), state, [torch.empty_like(w) for w in weights]
    if name in _SPARSE and args and args[-1].is_sparse:
        return _with_indices_of(args[-1], args[0].dtype)
    if name == "_to_dense":
        return torch.empty(args[0].shape, dtype=args[0].dtype, device=CUDA)
    if name in ("batch_norm_elemt", "batch_norm_backward_elemt"):
        return torch.empty_like(args[0])
    if name in ("batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_gather_stats"):
        return tuple(args[0].new_empty(args[0].shape[1], dtype=torch.float32) for _ in range(2))
    if name == "batch_norm_backward_reduce":
        weight = args[4]
        kind = args[2].dtype if weight is None else weight.dtype
        wide = [args[0].new_empty(args[0].shape[1], dtype=torch.float32) for _ in range(2)]
        return *wide, *(args[0].new_empty(args[0].shape[1], dtype=kind) for _ in range(2))
    return None


_SPARSE = frozenset(("detach", "alias", "clone", "_coalesce", "sparse_mask"))
"""Results are sparse as their last argument is; no two indices are taken to be equal."""


def _with_indices_of(known: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    held = (torch.empty(t.shape, dtype=kind, device=CUDA)
            for t, kind in ((known._indices(), torch.int64), (known._values(), dtype)))  # fmt: skip
    made: torch.Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        known.sparse_dim(), known.dense_dim(), known.shape, *held, dtype=dtype, layout=torch.sparse_coo,
        device=CUDA, is_coalesced=True,
    )  # fmt: skip
    return made


def tried_on_cpu(func: Any, args: Any, kwargs: Any, values: Values) -> Any:
    """The results on the CPU, or None where there is no such kernel or too much to compute."""
    if sum(t.numel() * t.element_size() for t in tensors_in(args, kwargs)) > MOST_BYTES:
        return None

    def real(t: torch.Tensor) -> torch.Tensor:
        known = values.of(t)
        if known is not None:
            return known
        return torch.zeros(t.shape, dtype=t.dtype)

    given = mapped(dict(kwargs), real)
    if given.get("device") is not None:
        given["device"] = torch.device("cpu")
    try:
        return func(*mapped(args, real), **given)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return None
