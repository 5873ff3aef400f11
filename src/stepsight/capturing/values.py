"""Values on the fake GPU: small ones that came from real data are followed, others are assumed and counted.

A fake tensor may carry its real values, so that a mask, a length or a set of indices leads the script the way
it would go. Masks of routing carry the share that they select; checks of a healthy run (numbers are finite)
are all true or all false. What is not known reads as an assumption that the user can change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.capturing.calls import mapped, tensors_in
from stepsight.capturing.request import Assumptions

SHARE = "_stepsight_share"
_FOLLOWED_NAMES = """
    view _unsafe_view reshape t transpose permute expand slice select squeeze unsqueeze detach alias clone
    unbind split index index_select _to_copy gt ne eq bool flatten contiguous _reshape_alias narrow movedim
"""
FOLLOWED = frozenset(_FOLLOWED_NAMES.split())


def install_routing() -> None:
    """Results of one_hot carry the share of their elements that are set."""
    real = torch.nn.functional.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        out: torch.Tensor = real(tensor, num_classes)
        if isinstance(out, FakeTensor) and num_classes > 0:
            setattr(out, SHARE, 1.0 / num_classes)
        return out

    torch.nn.functional.one_hot = one_hot
    torch._C._nn.one_hot = one_hot


def share_of(tensor: torch.Tensor) -> float | None:
    share: float | None = getattr(tensor, SHARE, None)
    return share


def counts(total: int, classes: int, balance: float) -> torch.Tensor:
    """``total`` tokens over ``classes`` experts; the first gets ``balance`` times the mean."""
    first = min(round(total / classes * balance), total)
    rest = max(classes - 1, 1)
    left = total - first if classes > 1 else 0
    shares = [first if classes > 1 else total]
    shares += [left // rest + (i < left % rest) for i in range(classes - 1)]
    return torch.tensor(shares, dtype=torch.int64)


_FINITE = {"isfinite": 1.0, "isreal": 1.0, "isnan": 0.0, "isinf": 0.0, "isneginf": 0.0, "isposinf": 0.0}
_BOTH = frozenset(
    ("logical_and", "logical_and_", "bitwise_and", "bitwise_and_", "__and__", "mul", "__iand__")
)


def install_checks() -> None:
    """Results of checks carry what a healthy run gives."""
    for name, share in _FINITE.items():
        for owner in (torch, torch.Tensor):
            if hasattr(owner, name):
                setattr(owner, name, _marked(getattr(owner, name), share))
    from torch.distributions import constraints

    for kind in _below(constraints.Constraint):
        if "check" in vars(kind):
            kind.check = _marked(kind.check, 1.0)


def _below(kind: Any) -> list[Any]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _below(sub))]


def _marked(function: Callable[..., Any], share: float) -> Callable[..., Any]:
    def check(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if isinstance(out, FakeTensor):
            setattr(out, SHARE, share)
        return out

    return check


def follow_masks(name: str, args: Any, out: Any) -> None:
    """What is known of a mask that came from others: a view or comparison selects as the mask does, a sum
    over it is positive everywhere, checks combine."""
    masks = list(tensors_in(args))
    shares = [share for t in masks if (share := share_of(t)) is not None]
    found: float | None = None
    if name == "eq" and len(masks) == 2 and masks[0] is masks[1]:
        found = 1.0
    elif name in FOLLOWED and shares:
        found = shares[0]
    elif name == "sum" and shares:
        found = 1.0
    elif shares and len(shares) == len(masks) and _is_mask(out):
        if name in ("logical_not", "bitwise_not"):
            found = 1.0 - shares[0]
        elif name in ("all", "_is_all_true"):
            found = float(shares[0] >= 1)
        elif name in ("any", "_is_any_true"):
            found = float(shares[0] > 0)
        elif name in _BOTH:
            found = min(shares)
    for t in tensors_in(out) if found is not None else ():
        if isinstance(t, FakeTensor):
            setattr(t, SHARE, found)


def _is_mask(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.dtype == torch.bool


FLOATS_FOLLOWED = 64
"""Floats are followed up to this many elements: loss scales, small constants. More where they come from known
integers element by element: logarithms of distances."""
INTEGER_BYTES_FOLLOWED = 1 << 25
"""Integers and masks are followed up to this many bytes: token ids, positions, masks of weights."""
LARGEST_READ_BYTES = 1 << 28
"""Larger copies to the host stay without data."""

_RANDOM = """bernoulli bernoulli_ native_dropout rand randn randint randperm normal_ uniform_ multinomial
    exponential_ random_ rand_like randn_like randint_like normal log_normal_ geometric_ poisson"""
RANDOM = frozenset(_RANDOM.split())
_SHAPED = "nonzero masked_select _unique2 unique_dim unique_consecutive repeat_interleave bincount nms"
SHAPED_BY_VALUES = frozenset(_SHAPED.split())
FILLED = frozenset(("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"))
"""Results depend on the shape of what is given, not on its values."""
_INDEXED = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))


def _same_shape(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


class Values:
    """What is known of fake tensors' contents."""

    def __init__(self, assumptions: Assumptions) -> None:
        self.assumptions = assumptions
        self.assumed: Counter[str] = Counter()
        self._changed: dict[int, torch.Tensor] = {}
        self._filled: dict[int, tuple[ReferenceType[torch.Tensor], bool]] = {}
        """By memory: large tensors that hold one value."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's real values, where they are known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        value: torch.Tensor | None = getattr(tensor, "_stepsight_value", None)
        if value is None or value.untyped_storage()._cdata in self._changed:
            return None
        return value

    def learn(self, tensor: Any, value: Any, *, computed: bool = False) -> None:
        """``computed``: from known values, so that `computed` has found it small enough."""
        known = isinstance(tensor, FakeTensor) and isinstance(value, torch.Tensor)
        if known and (computed or followed(value)):
            tensor._stepsight_value = value

    def filled(self, tensor: torch.Tensor, value: bool) -> None:
        """All its elements are 0, or 1."""
        self._filled[tensor.untyped_storage()._cdata] = ref(tensor), value

    def copied(self, source: torch.Tensor, out: Any) -> None:
        """Integers and masks made of a large tensor that holds one value."""
        small = not out.dtype.is_floating_point and followed(out)
        held = self._filled.get(source.untyped_storage()._cdata) if small else None
        if held is not None and held[0]() is source:
            self.learn(out, torch.full(out.shape, held[1], dtype=out.dtype))

    def forget(self, tensor: torch.Tensor) -> None:
        """Something unknown was written into it, and so into everything that shares its memory."""
        self._filled.pop(tensor.untyped_storage()._cdata, None)
        value = getattr(tensor, "_stepsight_value", None)
        if value is not None:
            self._changed[value.untyped_storage()._cdata] = value

    def computed(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """The call done on known values, or None where one is unknown or there is too much to follow."""
        if name in RANDOM or not self._worth_following(func, args, kwargs, tensors):
            return None
        of = _same_shape if name in FILLED else self.of
        if any(of(t) is None for t in tensors):
            return None
        real_args, real_kwargs = mapped(args, of), mapped(dict(kwargs), of)
        if real_kwargs.get("device") is not None:
            real_kwargs["device"] = torch.device("cpu")
        real_kwargs.pop("pin_memory", None)
        try:
            result = func(*real_args, **real_kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return None
        by_element = bool(tensors) and (torch.Tag.pointwise in func.tags or name in FOLLOWED)
        made = list(tensors_in(result))
        small = all(_bytes(t) <= INTEGER_BYTES_FOLLOWED for t in made)
        return result if small and (by_element or all(map(followed, made))) else None

    def _worth_following(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
        if tensors:
            known = (followed(t) or self.of(t) is not None for t in tensors)
            return all(known) and max(map(_bytes, tensors)) <= INTEGER_BYTES_FOLLOWED
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        size = args[0] if args and isinstance(args[0], list | tuple) else ()
        count = 1
        for extent in size:
            count *= extent if isinstance(extent, int) else 1
        if dtype.is_floating_point:
            return count <= FLOATS_FOLLOWED
        return bool(count * dtype.itemsize <= INTEGER_BYTES_FOLLOWED)

    def item(self, tensor: torch.Tensor) -> Any:
        """What ``.item()`` gives."""
        value = self.of(tensor)
        if value is not None:
            return value.item()
        dtype = tensor.dtype
        share = share_of(tensor)
        if dtype == torch.bool and share in (0.0, 1.0):
            self.assumed["numbers are finite and in range"] += 1
            return bool(share)
        if dtype == torch.bool:
            self.assumed["a condition read from the GPU is false"] += 1
            return False
        if dtype.is_floating_point:
            self.assumed["a number read from the GPU is 0"] += 1
            return 0.0
        self.assumed["an integer read from the GPU is 1"] += 1
        return 1

    def read(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """What a copy to the host gives."""
        value = self.of(tensor)
        if value is not None:
            return value.to(dtype) if dtype else value.clone()
        wanted = dtype or tensor.dtype
        if _bytes(tensor) > LARGEST_READ_BYTES:
            with tensor.fake_mode:
                return torch.empty(tensor.shape, dtype=wanted, device="cpu")
        if wanted.is_floating_point and tensor.numel() > FLOATS_FOLLOWED:  # what a script clusters or sorts
            self.assumed["arrays copied to the host are standard normal"] += 1
            return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(wanted)
        if tensor.numel() > 1:
            self.assumed[f"{_kind(wanted)} copied to the host are 0"] += 1
        return torch.zeros(tensor.shape, dtype=wanted)

    def depends_on_values(self, name: str, args: Any) -> bool:
        """Whether the size of the result follows from contents."""
        if name in SHAPED_BY_VALUES:
            return not (name == "repeat_interleave" and len(args) > 1 and isinstance(args[1], int))
        return name in _INDEXED and any(
            isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1] or ()
        )

    def assumed_result(self, name: str, args: Any, kwargs: Any, mode: Any) -> Any:
        """A result of the assumed size."""
        first = args[0]
        mask = _mask_of(name, args)
        if name in ("index_put_", "_index_put_impl_", "index_put"):
            if mask is not None and self.of(mask) is None:
                self.assumed["share of elements a mask selects"] += 1
            return first if name.endswith("_") else first.clone()
        if name == "bincount":
            classes = max(int(kwargs.get("minlength", args[2] if len(args) > 2 else 0) or 0), 1)
            with mode:
                made = torch.empty(classes, dtype=torch.int64, device=first.device)
            self.counted(first, classes, made)
            return made
        chosen = 0 if mask is None else self._selected(mask)
        with mode:
            integers = {"dtype": torch.int64, "device": first.device}
            if name == "nonzero":
                return torch.empty(chosen, first.dim(), **integers)
            if name == "nms":
                self.assumed["share of boxes that are kept"] += 1
                return torch.empty(self._kept(first.shape[0]), **integers)
            if name == "masked_select":
                return torch.empty(chosen, dtype=first.dtype, device=first.device)
            if mask is not None:
                at = next(i for i, index in enumerate(args[1]) if index is mask)
                before, after = first.shape[:at], first.shape[at + mask.dim() :]
                return torch.empty(*before, chosen, *after, dtype=first.dtype, device=first.device)
            if name == "repeat_interleave":
                return torch.empty(first.numel(), **integers)
            self.assumed["share of values that are distinct"] += 1
            count = max(1, round(first.numel() * self.assumptions.distinct_share))
            distinct = torch.empty(count, dtype=first.dtype, device=first.device)
            return distinct, torch.empty(first.numel(), **integers), torch.empty(count, **integers)

    def _kept(self, boxes: int) -> int:
        return max(1, round(boxes * self.assumptions.mask_share)) if boxes else 0

    def _selected(self, mask: torch.Tensor) -> int:
        known = self.of(mask)
        if known is not None:
            return int(known.count_nonzero())
        share = share_of(mask)
        if share is None:
            self.assumed["share of elements a mask selects"] += 1
            share = self.assumptions.mask_share
        elif share < 1:
            self.assumed["experts get equal shares of the tokens"] += 1
        return int(max(1, round(mask.numel() * share)))

    def counted(self, tensor: torch.Tensor, classes: int, out: torch.Tensor) -> None:
        """``out`` counts ``tensor``'s values by class."""
        self.assumed["experts get equal shares of the tokens"] += 1
        self.learn(out, counts(tensor.numel(), classes, self.assumptions.expert_balance).to(out.dtype))


def _mask_of(name: str, args: Any) -> torch.Tensor | None:
    """The mask by which a call selects elements."""
    if name in ("nonzero", "masked_select"):
        mask: torch.Tensor = args[0] if name == "nonzero" else args[1]
        return mask
    if name not in _INDEXED:
        return None
    return next((i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)), None)


def most_frequent(values: torch.Tensor) -> int:
    """How often the value that occurs most often does."""
    return int(torch.unique(values, return_counts=True)[1].max()) if values.numel() else 0


def followed(tensor: torch.Tensor) -> bool:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.numel() <= FLOATS_FOLLOWED)
    return _bytes(tensor) <= INTEGER_BYTES_FOLLOWED


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _kind(dtype: torch.dtype) -> str:
    return "numbers" if dtype.is_floating_point else "integers"
