"""The device ``kompute``: PyTorch's eager mode, without C++.

Every operator goes through one function: the table of lowerings; in-place and out variants by the
functional operator of the same schema; PyTorch's decompositions; last the CPU, with a warning.
Views are PyTorch's own: they change sizes and strides only, so the CPU's kernels serve.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedOperatorException
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import kompute_dml as dml

from ..errors import DeviceLostError, DmlError, OutOfMemoryError
from ..layout import extent
from ..runtime.heap import Allocation
from . import fallback, memory, places, tape, versions
from .decompositions import decompositions, references
from .layouts import CHANNELS_LAST, Order, back, channels_last, order_of, ordered, restored
from .module import Module
from .patches import Guard
from .rows.random import drawn_from
from .table import LOWERINGS, lowered
from .types import Unsupported
from .values import Value, cast, expanded

aten = torch.ops.aten
_IGNORED = frozenset(
    ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"))
Operator = Any  # torch._ops.OpOverload


def unwrapped(x: torch.Tensor) -> Value:
    """A tensor of the device, or a copy of one of the host, for a lowering."""
    tensor = memory.tensor_of(x) if x.device.type == memory.NAME else memory.upload(x)
    return Value(tensor, x.shape, x.dtype)


def _turned(v: Value, x: torch.Tensor) -> Value:
    """What PyTorch notes of a view instead of computing it: conjugates, and opposites. Copies and
    products of matrices get tensors with notes. Other operators get tensors without."""
    if x.device.type != memory.NAME:
        return v
    if x.is_conj():
        v = lowered(aten.conj_physical.default, v)
    return lowered(aten.neg.default, v) if x.is_neg() else v


def wrapped(v: Value, inputs: Sequence[Allocation] = (), order: Order | None = None
            ) -> torch.Tensor:
    """A new tensor of PyTorch's. Elements that lie in an input, or apart, are copied. The value's
    dimensions are in ``order``."""
    t, shape, strides = v.data, v.shape, None
    if order is not None:
        shape, strides = back(shape, order)
    if t is None:
        return memory.adopt(None, shape, v.dtype)
    whole = not t.byte_offset and t.desc.is_packed
    if not whole or any(t.allocation is a for a in inputs):
        t = dml.identity(t)
    return memory.adopt(t.allocation, shape, v.dtype, strides)


def write(target: torch.Tensor, v: Value) -> torch.Tensor:
    """Put elements where a tensor's lie, so that its views see them."""
    v = cast(expanded(v, target.shape), target.dtype)
    if v.data is not None:
        place = memory.tensor_of(target)
        assert place is not None
        source = v.data
        if source.allocation is place.allocation:  # it may overlap
            source = dml.identity(source)
        dml.identity(source, out=place)
        memory.note_write(place.allocation)
    return target


class _Variant:
    """The functional operator of an in-place or out variant."""

    def __init__(self, op: Operator) -> None:
        arguments = op._schema.arguments
        self.written = tuple(a.name for a in arguments
                             if a.alias_info is not None and a.alias_info.is_write)
        inputs = [a for a in arguments if not a.is_out]
        self.inputs = len(inputs)
        self.names = [a.name for a in arguments]
        self.is_out = any(a.is_out for a in arguments)
        self.functional = self._find(op, [(a.name, str(a.type)) for a in inputs])

        self.is_new = [r.alias_info is None for r in op._schema.returns]
        """Of each thing that it returns, whether it is none of the arguments."""

    def returned(self, targets: Sequence[Any], result: Any = None) -> Any:
        """What the schema returns: arguments that were written, and what is new of a result."""
        if not self.is_new:
            return None
        if any(self.is_new):
            written = iter(targets)
            results = result if isinstance(result, (tuple, list)) else [result]
            targets = [y if new else next(written) for new, y in zip(self.is_new, results)]
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _find(self, op: Operator, inputs: list[tuple[str, str]]) -> Operator:
        if not self.written:
            return None
        base = op._schema.name.split("::")[1]
        inplace = base.endswith("_") and not base.endswith("__")
        for name in (base[:-1], base[:-1] + "_functional") if inplace else (base,):
            packet = getattr(aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                other = getattr(packet, overload)
                theirs = other._schema.arguments
                if [(a.name, str(a.type)) for a in theirs] == inputs and not any(
                        a.alias_info is not None and a.alias_info.is_write for a in theirs):
                    return other
        return None


@functools.cache
def _variant(op: Operator) -> _Variant:
    return _Variant(op)


def run(op: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply the lowering of ``op`` to tensors of PyTorch's."""
    leaves, spec = pytree.tree_flatten(
        (args, {k: v for k, v in kwargs.items() if k not in _IGNORED}))
    order = order_of(op, args, kwargs)
    inputs = []
    known: dict[int, Value] = {}
    """By tensor: functions know a tensor that comes twice."""
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor):
            if isinstance(x, FakeTensor):  # see on_host
                raise UnsupportedOperatorException(op)
            v = known.get(id(x)) or known.setdefault(id(x), _turned(
                unwrapped(x if order is None else ordered(x, order)), x))
            leaves[i] = v
            if v.data is not None:
                inputs.append(v.data.allocation)
    a, k = pytree.tree_unflatten(leaves, spec)
    try:
        with drawn_from(kwargs.get("generator")):
            result = lowered(op, *a, **k)
    except TypeError as error:
        raise Unsupported(f"arguments: {error}") from error
    if isinstance(result, Value):
        return wrapped(result, inputs, order)
    outputs = []
    for v in pytree.tree_leaves(result, is_leaf=lambda x: x is None):
        y = wrapped(v, inputs, order) if isinstance(v, Value) else v
        if isinstance(v, Value) and v.data is not None:
            inputs.append(v.data.allocation)  # no two outputs share memory
        outputs.append(y)
    return outputs if len(op._schema.returns) == 1 else tuple(outputs)


@memory.raises_as_torch
def dispatch(op: Operator, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on tensors of the device."""
    memory.device()  # it may be gone
    data = _OF_NUMBERS.get(op)
    if data is not None and all(
            x.dtype == torch.float32 and x.device.type == memory.NAME for x in args[0]):
        op, args = data, (*args[:-1], _as_data(args[-1], data))
    return tape.run(op, args, kwargs, _dispatch)


def _dispatch(op: Operator, *args: Any, **kwargs: Any) -> Any:
    places.check(op, args, kwargs)
    if op in LOWERINGS:
        try:
            return run(op, args, kwargs)
        except (OutOfMemoryError, DeviceLostError):
            raise
        except (Unsupported, DmlError) as error:
            return on_host(op, args, kwargs, str(error))
    variant = _variant(op)
    functional = variant.functional
    if functional is not None and (functional in LOWERINGS or functional in decompositions()):
        return _into(variant, args, kwargs)
    decomposed = decompositions().get(op)
    if decomposed is not None:
        result = decomposed(*args, **kwargs)
        if result is not NotImplemented:
            return result
    reference = references().get(op)
    if reference is not None and op not in (active := _active()):
        active.add(op)  # a definition by the operator itself is none
        try:
            return reference(*args, **kwargs)
        finally:
            active.discard(op)
    return on_host(op, args, kwargs, "no lowering")


def _numbers_as_data() -> dict[Operator, Operator]:
    """Optimizers give lists of numbers that change at each step. As elements of a tensor they do
    not, and what ran before runs again."""
    found = {}
    for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv"):
        packet = getattr(aten, f"_foreach_{name}_")
        found[packet.ScalarList] = packet.Tensor if name.startswith("addc") else packet.List
    return found


_OF_NUMBERS = _numbers_as_data()


def _as_data(numbers: Sequence[float], op: Operator) -> Any:
    """Numbers as one tensor of FLOAT32, or as its elements."""
    x = wrapped(unwrapped(torch.tensor(numbers, dtype=torch.float32)))
    return x if op._schema.arguments[-1].name == "scalars" else list(x.unbind())


_local = threading.local()


def _active() -> set[Operator]:
    """The operators that this thread runs by PyTorch's Python definitions now."""
    operators: set[Operator] | None = getattr(_local, "active", None)
    if operators is None:
        operators = _local.active = set()
    return operators


def _into(variant: _Variant, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute by the functional operator, and write to the arguments that the schema names."""
    arguments = dict(zip(variant.names, args)) | kwargs
    targets = [arguments[n] for n in variant.written]
    inputs = {k: v for k, v in kwargs.items() if k not in variant.written or not variant.is_out}
    result = dispatch(variant.functional, *args[:variant.inputs], **inputs)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    for x, y in zip(pytree.tree_leaves(targets), pytree.tree_leaves(results), strict=True):
        _assign(x, y, variant.is_out)
    return variant.returned(targets)


def _assign(x: torch.Tensor, y: torch.Tensor, is_out: bool) -> None:
    if is_out and x.shape != y.shape:
        if not torch.can_cast(y.dtype, x.dtype):
            raise RuntimeError(f"result type {y.dtype} can't be cast to {x.dtype}")
        x.set_(y if y.dtype == x.dtype else y.to(x.dtype))
        return
    if x.shape != y.shape:
        raise RuntimeError(f"output with shape {list(x.shape)} doesn't match the broadcast shape "
                           f"{list(y.shape)}")
    if not torch.can_cast(y.dtype, x.dtype):
        raise RuntimeError(f"result type {y.dtype} can't be cast to the desired output type "
                           f"{x.dtype}")
    write(x, unwrapped(y))


def on_host(op: Operator, args: Sequence[Any], kwargs: dict[str, Any], reason: str) -> Any:
    """Run an operator on the CPU, on copies, and write back what it writes.

    Raises UnsupportedOperatorException for tensors that are traced. PyTorch's tracer runs operators
    without a meta kernel on the device, and breaks the graph at this error."""
    if any(isinstance(x, FakeTensor) for x in pytree.tree_leaves((args, kwargs))):
        raise UnsupportedOperatorException(op)
    if not _is_number(args) and _has_elements((args, kwargs)):
        fallback.report(str(op), reason)
    a, k = pytree.tree_map_only(
        torch.Tensor,
        lambda x: memory.to_host(x) if x.device.type == memory.NAME else x, (args, kwargs))
    if k.get("device") is not None:
        k["device"] = torch.device("cpu")
    variant = _variant(op)
    # What is written may be resized, which memory of this package cannot be.
    a = [_cloned(x) if name in variant.written else x for name, x in zip(variant.names, a)]
    k = {name: _cloned(x) if name in variant.written else x for name, x in k.items()}
    result = op(*a, **k)
    if not variant.written or any(variant.is_new):
        result = pytree.tree_map_only(torch.Tensor, lambda x: wrapped(unwrapped(x)), result)
    if not variant.written:
        return result
    mine, theirs = dict(zip(variant.names, args)) | kwargs, dict(zip(variant.names, a)) | k
    for name in variant.written:
        for x, y in zip(pytree.tree_leaves(mine[name]), pytree.tree_leaves(theirs[name])):
            if x.shape == y.shape:
                write(x, unwrapped(y))
            else:
                x.set_(wrapped(unwrapped(y)))
    return variant.returned([mine[n] for n in variant.written], result)


def _cloned(arguments: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.clone, arguments)


def _has_elements(arguments: Any) -> bool:
    """Whether there is something to compute, or to draw."""
    tensors = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor)]
    return not tensors or any(x.numel() for x in tensors)


def _is_number(args: Sequence[Any]) -> bool:
    """Whether it is arithmetic with one number in FLOAT64, which is a step of the host: GradScaler
    takes the reciprocal of its scale so."""
    tensors = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
    return bool(tensors) and all(x.dtype == torch.float64 and x.numel() == 1 for x in tensors)


# Memory and copies


def _empty(size: Sequence[int], dtype: torch.dtype | None = None, **other: Any) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    if other.get("memory_format") not in CHANNELS_LAST:
        return memory.new(size, dtype)
    order = channels_last(len(size))
    return restored(memory.new([size[d] for d in order], dtype), order)


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None,
                   **other: Any) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    packed = [math.prod(size[i + 1:]) for i in range(len(size))]
    if not math.prod(size) or list(stride) == packed:
        return memory.new(size, dtype)
    return torch.as_strided(memory.new((extent(size, stride),), dtype), size, stride)


def _new_empty_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None,
    device: torch.device | None = None, **other: Any,
) -> torch.Tensor:
    """Autograd takes parts of it by its strides."""
    return torch.empty_strided(size, stride, dtype=dtype or x.dtype, device=device or x.device)


def _to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None,
             device: torch.device | None = None, **other: Any) -> torch.Tensor:
    dtype = dtype or x.dtype
    if is_lazy(x):
        return torch.empty(0, dtype=dtype, device=device or x.device)
    order = order_of(aten._to_copy.default, (x,), other)
    packed = x if order is None else ordered(x, order)
    if x.device.type != memory.NAME:
        return wrapped(unwrapped(packed.to(dtype)), order=order)
    if device is not None and device.type != memory.NAME:
        there = memory.to_host(packed).to(device=device, dtype=dtype)
        return there if order is None else restored(there, order)
    v = unwrapped(packed)
    if v.data is None:
        return memory.adopt(None, x.shape, dtype)
    try:
        return wrapped(cast(v, dtype), [v.data.allocation], order)
    except (OutOfMemoryError, DeviceLostError):
        raise
    except (Unsupported, DmlError) as error:
        return on_host(aten._to_copy.default, (x,), {"dtype": dtype}, str(error))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
               ) -> torch.Tensor:
    if _is_same(source, target):
        return target
    v = _turned(unwrapped(source), source)
    if target.device.type == memory.NAME:
        return write(target, _turned(cast(v, target.dtype), target))
    target.copy_(memory.download(v.data, v.shape, v.dtype).to(target.dtype))
    return target


def _is_same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors are the same elements, as where AOTAutograd copies an argument that a
    graph has written in place."""
    return (x.device == y.device and x.dtype is y.dtype and x.shape == y.shape and x.numel() > 0
            and x.stride() == y.stride() and x.storage_offset() == y.storage_offset()
            and x.is_conj() == y.is_conj() and x.is_neg() == y.is_neg()
            and memory.allocation_of(x) is memory.allocation_of(y))


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if source.shape != target.shape:
        return target.set_(wrapped(unwrapped(source)))
    return _copy_from(source, target)


def _clone(x: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=memory_format or torch.preserve_format)
    return write(y, _turned(unwrapped(x), x))


def _item(x: torch.Tensor) -> Any:
    return memory.to_host(x).item()


def _resize(x: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
    needed = math.prod(size)
    present = x.untyped_storage()
    held = getattr(present, "kompute_dml_allocation", None)
    room = 0 if held is None else present.nbytes()  # memory may be larger than PyTorch knows
    if (x.storage_offset() + needed) * x.element_size() > room:
        larger = memory.new((needed,), x.dtype)
        if x.numel():
            write(torch.as_strided(larger, (min(x.numel(), needed),), (1,)),
                  unwrapped(torch.as_strided(x, (min(x.numel(), needed),), (1,),
                                             x.storage_offset())))
        x.set_(larger)
    return x.set_(x.untyped_storage(), x.storage_offset(), tuple(size), tuple(
        math.prod(size[i + 1:]) for i in range(len(size))))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    places.check(aten.equal.default, (a, b), {})
    return a.shape == b.shape and bool(torch.eq(a, b).all().item())


def _left_aligned(x: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether an encoder may leave padding out by a strided nested tensor. The device has none. A
    mask gives the same results."""
    return False


def _rrelu(x: torch.Tensor, noise: torch.Tensor, lower: float = 0.125, upper: float = 1 / 3,
           training: bool = False, generator: torch.Generator | None = None) -> torch.Tensor:
    y, slopes = aten.rrelu_with_noise_functional(x, noise, lower, upper, training, generator)
    if training:
        noise.copy_(slopes)
    return y


def _cholesky(x: torch.Tensor, upper: bool = False) -> torch.Tensor:
    return torch.linalg.cholesky(x, upper=upper)


def _check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Read whether a matrix was singular, and raise PyTorch's error."""
    aten._linalg_check_errors(memory.to_host(info), api_name, is_matrix=is_matrix)


def _arange_out(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
    y = wrapped(LOWERINGS[aten.arange.start_step](start, end, step, dtype=out.dtype))
    _assign(out, y, True)
    return out


def _unscale(gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, scale: torch.Tensor
             ) -> None:
    """GradScaler: whether a gradient is not finite, and the gradients times ``scale``."""
    for g in gradients:
        finite = torch.isfinite(g).all()
        found_inf.copy_(torch.where(finite, found_inf, torch.ones_like(found_inf)))
        g.mul_(scale)


def _update_scale(scale: torch.Tensor, tracker: torch.Tensor, found_inf: torch.Tensor,
                  growth: float, backoff: float, interval: int) -> torch.Tensor:
    """GradScaler: a smaller scale after an overflow, a larger one after ``interval`` steps
    without."""
    if found_inf.item():
        scale.mul_(backoff)
        tracker.zero_()
    elif tracker.item() + 1 == interval:
        if math.isfinite(scale.item() * growth):
            scale.mul_(growth)
        tracker.zero_()
    else:
        tracker.add_(1)
    return scale


_OWN: dict[str, Callable[..., Any]] = {
    "empty.memory_format": _empty, "empty_strided": _empty_strided,
    "new_empty_strided": _new_empty_strided, "_to_copy": _to_copy,
    "_copy_from": _copy_from, "_copy_from_and_resize": _copy_from_and_resize, "clone": _clone,
    "_local_scalar_dense": _item, "resize_": _resize, "equal": _equal,
    "arange.start_out": _arange_out, "_linalg_check_errors": _check_errors,
    "_nested_tensor_from_mask_left_aligned": _left_aligned,
    "cholesky": _cholesky, "rrelu_with_noise": _rrelu,
    "_amp_update_scale_": _update_scale,
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
}
_VIEWS = ("as_strided", "view", "_unsafe_view", "_reshape_alias", "unfold",
          "set_.source_Storage_storage_offset", "set_.source_Tensor", "set_.source_Storage", "set_",
          "view.dtype", "view_as_real", "view_as_complex")


def register() -> tuple[object, ...]:
    """Name the device and register its operators. The result must live as long as the process."""
    _setup_privateuseone_for_python_backend(
        memory.NAME, backend_module=Module(), device_guard=Guard())
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(dispatch, "PrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    for name, function in _OWN.items():
        library.impl(name, memory.raises_as_torch(function), "PrivateUse1")
    for notes in ("Conjugate", "Negative"):  # else what is written goes to a copy without notes
        library.impl("_copy_from", torch.library.fallthrough_kernel, notes)
    host = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    for name in _VIEWS:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        library.impl(name, functools.partial(versions.redispatching(op), host), "PrivateUse1")
    entered = [op for op in LOWERINGS
               if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten"]
    for function, ops in ((dispatch, entered),
                          (_change_list, filter(None, map(_list_in_place, entered)))):
        for op in ops:
            if _composed(op):  # before what PyTorch composes of others
                library.impl(op.name().split("::")[1], functools.partial(function, op),
                             "PrivateUse1")
    return everything, library


def _list_in_place(op: Operator) -> Operator:
    """The in-place variant of an operator of lists, which PyTorch would do one by one."""
    name, _, overload = op.name().split("::")[1].partition(".")
    packet = getattr(aten, name + "_", None) if name.startswith("_foreach_") else None
    return getattr(packet, overload or "default", None)


def _change_list(op: Operator, targets: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """Change all tensors of a list at once, or one by one where one may read what another one's
    change writes."""
    storages = {id(x.untyped_storage()): i for i, x in enumerate(targets)}
    apart = len(storages) == len(targets) and all(
        id(x.untyped_storage()) not in storages or (isinstance(others, (list, tuple))
                                                  and x is targets[i])
        for others in args for i, x in enumerate(pytree.tree_leaves(others))
        if isinstance(x, torch.Tensor))
    if apart:
        return dispatch(op, targets, *args, **kwargs)
    return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, targets, *args, **kwargs)


def _composed(op: Operator) -> bool:
    name = op.name()
    short = name.split("::")[1]
    if short in _OWN or short in _VIEWS or any(r.alias_info for r in op._schema.returns):
        return False
    return torch._C._dispatch_has_kernel(name) and any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, f"CompositeExplicitAutograd{kind}")
        for kind in ("", "NonFunctional"))


