"""Cases of gradients that move data, of batch normalization in training, and of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cases import CASES, Scale
from ..cases import case as cases
from ..cases.case import of_halves
from ..cases.gradients import batch_gradient
from ..cases.images import RESPONSE, normal
from .case import Peer, Recipe, image_sizes
from .ordinary import Peers, ordinary

if TYPE_CHECKING:
    import torch

_EPSILON = 1e-5
_POOL: dict[str, Any] = dict(
    window_size=(3, 3), strides=(2, 2), start_padding=(1, 1), end_padding=(0, 0))


def _sizes(s: Scale, smaller: int = 1) -> tuple[int, ...]:
    n, c, h, w = image_sizes(s)
    return n, c, h // smaller, w // smaller


def _peer(call: Callable[..., object], checked: bool = True) -> Peers:
    """A peer that is one call of (torch.ops.aten, the inputs)."""

    def peers(torch: ModuleType, *inputs: torch.Tensor) -> Iterator[Peer]:
        yield Peer("torch", partial(call, torch.ops.aten, *inputs), checked)

    return peers


def _taps(x: np.ndarray) -> np.ndarray:
    """{9, n, c, h/2, w/2}: windows of 3x3, stride 2, with a padding of NaN in front."""
    h, w = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
    return np.stack([padded[:, :, i : i + h : 2, j : j + w : 2]
                     for i in range(3) for j in range(3)])


def _spread(parts: np.ndarray) -> np.ndarray:
    """The sum of parts of windows at their places: the transpose of ``_taps``."""
    n, c, h, w = parts.shape[1:]
    whole = np.zeros((n, c, 2 * h + 2, 2 * w + 2))
    for tap, part in enumerate(parts):
        i, j = divmod(tap, 3)
        whole[:, :, i : i + 2 * h : 2, j : j + 2 * w : 2] += part
    return whole[:, :, 1:-1, 1:-1]


def _average_back(dy: np.ndarray) -> np.ndarray:
    inside = ~np.isnan(_taps(np.zeros((1, 1, *(2 * n for n in dy.shape[2:])))))
    return _spread(np.where(inside, dy / inside.sum(0), 0))


def _max_back(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    chosen = np.nanargmax(_taps(x), 0)
    return _spread(np.where(np.arange(9)[:, None, None, None, None] == chosen, dy, 0))


def _average(s: Scale) -> cases.OperatorCase:
    return cases.case(_average_back, cases.Given(_sizes(s, 2), -1, 1), include_padding=0,
                      output_sizes=_sizes(s), **_POOL)


def _maximum(s: Scale) -> cases.OperatorCase:
    return cases.case(_max_back, cases.Given(_sizes(s), -1, 1), cases.Given(_sizes(s, 2), -1, 1),
                      dilations=(1, 1), **_POOL)


def _max_peers(torch: ModuleType, x: torch.Tensor, dy: torch.Tensor) -> Iterator[Peer]:
    # PyTorch keeps the indices of the maxima.
    _, indices = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    yield Peer("torch", lambda: torch.ops.aten.max_pool2d_with_indices_backward(
        dy, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices))


def _response_peers(torch: ModuleType, x: torch.Tensor, dy: torch.Tensor) -> Iterator[Peer]:
    size = RESPONSE["local_size"]
    leaf = x.requires_grad_()
    y = torch.nn.functional.local_response_norm(
        leaf, size, RESPONSE["alpha"], RESPONSE["beta"], RESPONSE["bias"])
    # PyTorch rounds each step to FLOAT16.
    yield Peer("torch", lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True)[0],
               checked=dy.element_size() > 2)


def _adam_peers(
    torch: ModuleType, x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
    step: torch.Tensor
) -> Iterator[Peer]:
    parameters = torch.nn.Parameter(x)
    parameters.grad = g
    optimizer = torch.optim.Adam([parameters], lr=0.01, fused=True)
    yield Peer("torch", optimizer.step, checked=False)  # in place


def _per_channel(s: Scale, low: float, high: float) -> cases.Given:
    return cases.Given((1, _sizes(s)[1], 1, 1), low, high)


_OVER_BATCH = (0, 2, 3)


def _batch(s: Scale) -> cases.OperatorCase:
    return cases.case(
        lambda x, scale, bias: (
            normal(x, _OVER_BATCH, scale, bias), x.mean(_OVER_BATCH, keepdims=True),
            x.var(_OVER_BATCH, keepdims=True)),
        cases.Given(_sizes(s), 0, 1), _per_channel(s, 0.5, 1.5), _per_channel(s, -1, 1),
        epsilon=_EPSILON, room=1e-4)


def _batch_back(training: bool, s: Scale) -> cases.OperatorCase:
    """The given mean is that of the input, about. Sums of the incoming gradients are FLOAT16's."""
    return cases.case(
        partial(batch_gradient, training), cases.Given(_sizes(s), 0, 1),
        cases.Given(_sizes(s), -1, 1), _per_channel(s, 0.45, 0.55), _per_channel(s, 0.08, 0.09),
        _per_channel(s, 0.5, 1.5), epsilon=_EPSILON, room=1e-4)


def _batch_back_peers(
    torch: ModuleType, x: torch.Tensor, dy: torch.Tensor, *given: torch.Tensor
) -> Iterator[Peer]:
    mean, variance, scale = (t.reshape(-1) for t in given)
    mean, deviation = mean.float(), (variance.float() + _EPSILON).rsqrt()
    # PyTorch uses the given mean where DirectML's operator computes it.
    yield Peer("torch", lambda: torch.ops.aten.native_batch_norm_backward(
        dy, x, scale, None, None, mean, deviation, True, _EPSILON, [True] * 3), checked=False)


def _inference_back_peers(
    torch: ModuleType, x: torch.Tensor, dy: torch.Tensor, *given: torch.Tensor
) -> Iterator[Peer]:
    mean, variance, scale = (t.reshape(-1) for t in given)
    yield Peer("torch", lambda: torch.ops.aten.native_batch_norm_backward(
        dy, x, scale, mean, variance, None, None, False, _EPSILON, [True] * 3), checked=False)


def _batch_peers(
    torch: ModuleType, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> Iterator[Peer]:
    # PyTorch gives the reciprocal of the deviation where DirectML gives the variance.
    yield Peer("torch", lambda: torch.ops.aten.native_batch_norm(
        x, scale.reshape(-1), bias.reshape(-1), None, None, True, 0.0, _EPSILON), checked=False)


def _resample_peers(torch: ModuleType, dy: torch.Tensor) -> Iterator[Peer]:
    n, c, h, w = dy.shape
    # PyTorch adds up FLOAT16 in FLOAT16.
    yield Peer("torch", lambda: torch.ops.aten.upsample_bilinear2d_backward(
        dy, [h, w], [n, c, h // 2, w // 2], False, None, None), checked=dy.element_size() > 2)


def _slice_peers(torch: ModuleType, dy: torch.Tensor) -> Iterator[Peer]:
    h, w = dy.shape
    yield Peer("torch", lambda: torch.ops.aten.slice_backward(dy, [h, 2 * w], 1, 0, 2 * w, 2))


def _average_peers(torch: ModuleType, dy: torch.Tensor) -> Iterator[Peer]:
    n, c, h, w = dy.shape
    x = dy.new_empty((n, c, 2 * h, 2 * w))
    yield Peer("torch", lambda: torch.ops.aten.avg_pool2d_backward(
        dy, x, [3, 3], [2, 2], [1, 1], False, False, None))


def _of(operator: str, what: str, peers: Peers, entry: cases.Entry | None = None,
        **more: Any) -> Iterator[Recipe]:
    """The operator's case of FLOAT32 and that of FLOAT16."""
    name = "DML_OPERATOR_" + operator
    entry = entry or CASES[name]
    yield ordinary(name, f"f32 {what}", entry, torch=peers, **more)
    yield ordinary(name, f"f16 {what}", lambda s: of_halves(entry(s)), torch=peers, **more)


GRADIENTS: tuple[Recipe, ...] = (
    *_of("ADAM_OPTIMIZER", "step", _adam_peers),
    *_of("ACTIVATION_RELU_GRAD", "square", _peer(
        lambda aten, x, dy: aten.threshold_backward(dy, x, 0))),
    *_of("ELEMENT_WISE_CLIP_GRAD1", "square", _peer(
        lambda aten, x, dy: aten.hardtanh_backward(dy, x, 0.25, 0.5))),
    *_of("AVERAGE_POOLING_GRAD", "3x3 / 2", _average_peers, _average),
    *_of("MAX_POOLING_GRAD", "3x3 / 2", _max_peers, _maximum),
    *_of("RESAMPLE_GRAD", "bilinear x 2", _resample_peers),
    *_of("SLICE_GRAD", "step 2", _slice_peers),
    # A normalization over a batch reads it twice: for the sums, and for the elements.
    *_of("BATCH_NORMALIZATION_TRAINING", "planes", _batch_peers, _batch, reads=(2, 1, 1), axis=1),
    *_of("BATCH_NORMALIZATION_TRAINING_GRAD", "planes", _batch_back_peers,
         partial(_batch_back, True), reads=(2, 2, 1, 1, 1), axis=1),
    # With given statistics all of it is known after one reading.
    *_of("BATCH_NORMALIZATION_GRAD", "planes", _inference_back_peers, partial(_batch_back, False),
         axis=1),
    *_of("LOCAL_RESPONSE_NORMALIZATION_GRAD", "across channels", _response_peers),
)
"""Work that is bound by memory. Bytes are those that must be read and written."""
