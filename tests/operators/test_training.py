"""A small network is trained on the device and in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from kompute_dml.attributes import ReduceFunction

_RATE, _BETA1, _BETA2, _EPSILON = 0.02, 0.9, 0.999, 1e-7
_NORM_EPSILON = 1e-3
_STEPS = 60
_ROWS = (2,)
_NAMES = ("w1", "scale", "shift", "w2", "b2")


def _data(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Points of the plane, a curved function of them, and initial parameters."""
    x = rng.uniform(-1, 1, (1, 1, 64, 2))
    target = np.sin(3 * x[..., :1]) * x[..., 1:]
    start = {"w1": rng.normal(0, 1, (1, 1, 2, 16)), "scale": np.ones((1, 1, 1, 16)),
             "shift": np.zeros((1, 1, 1, 16)), "w2": rng.normal(0, 0.3, (1, 1, 16, 1)),
             "b2": np.zeros((1, 1, 1, 1))}
    return x, target, start


def _train_on_device(
    device: dml.Device, data: np.ndarray, wanted: np.ndarray, start: dict[str, np.ndarray]
) -> list[float]:
    """The loss before each step."""
    x, target = (device.tensor(v.astype(np.float32)) for v in (data, wanted))
    p = {name: device.tensor(v.astype(np.float32)) for name, v in start.items()}
    moments = {name: [device.tensor(np.zeros(v.shape, np.float32)) for _ in range(2)]
               for name, v in start.items()}
    rows = data.shape[2]

    def total(t: Any) -> Any:
        return dml.reduce(t, function=ReduceFunction.SUM, axes=_ROWS)

    losses = []
    for step in range(1, _STEPS + 1):
        # Forward: a linear layer, batch normalization, RELU, a linear layer, the mean square.
        linear = dml.gemm(x, p["w1"])
        normal, mean, variance = dml.batch_normalization_training(
            linear, p["scale"], p["shift"], epsilon=_NORM_EPSILON)
        hidden = dml.activation_relu(normal)
        y = dml.add(dml.gemm(hidden, p["w2"]), p["b2"])
        difference = dml.subtract(y, target)
        losses.append(dml.reduce(difference, function=ReduceFunction.SUM_SQUARE, axes=_ROWS))

        # Backward.
        dy = dml.multiply(difference, 2 / rows)
        d_hidden = dml.gemm(dy, p["w2"], trans_b=True)
        d_normal = dml.activation_relu_grad(normal, d_hidden)
        d_linear, d_scale, d_shift = dml.batch_normalization_training_grad(
            linear, d_normal, mean, variance, p["scale"], epsilon=_NORM_EPSILON)
        gradients = {"w1": dml.gemm(x, d_linear, trans_a=True), "scale": d_scale,
                     "shift": d_shift, "w2": dml.gemm(hidden, dy, trans_a=True), "b2": total(dy)}

        # Each parameter and its moments change in place.
        count = np.full((1, 1, 1, 1), step, np.uint32)
        for name in _NAMES:
            state = (p[name], *moments[name])
            dml.adam_optimizer(
                *state, gradients[name], count, learning_rate=_RATE, beta1=_BETA1, beta2=_BETA2,
                epsilon=_EPSILON, out=state)
    return [float(loss.numpy().item()) / rows for loss in losses]


def _train_in_numpy(
    x: np.ndarray, target: np.ndarray, start: dict[str, np.ndarray]
) -> list[float]:
    """The same in float64. Gradients are finite differences, so that no formula is repeated."""
    p = {name: v.copy() for name, v in start.items()}
    moments = {name: [np.zeros(v.shape) for _ in range(2)] for name, v in start.items()}

    def loss(p: dict[str, np.ndarray]) -> float:
        linear = x @ p["w1"]
        mean, variance = (f(linear, 2, keepdims=True) for f in (np.mean, np.var))
        normal = (linear - mean) / np.sqrt(variance + _NORM_EPSILON) * p["scale"] + p["shift"]
        return float(np.square(np.maximum(normal, 0) @ p["w2"] + p["b2"] - target).mean())

    losses = []
    for step in range(1, _STEPS + 1):
        losses.append(loss(p))
        gradients = {name: np.zeros(v.shape) for name, v in p.items()}
        for name, v in p.items():
            for at in np.ndindex(v.shape):
                kept, sides = v[at], []
                for side in (kept + 1e-6, kept - 1e-6):
                    v[at] = side
                    sides.append(loss(p))
                v[at] = kept
                gradients[name][at] = (sides[0] - sides[1]) / 2e-6
        for name, g in gradients.items():
            m, v = moments[name]
            m[...] = _BETA1 * m + (1 - _BETA1) * g
            v[...] = _BETA2 * v + (1 - _BETA2) * g * g
            rate = _RATE * np.sqrt(1 - _BETA2**step) / (1 - _BETA1**step)
            p[name] -= rate * m / (np.sqrt(v) + _EPSILON)
    return losses


def test_the_loss_falls_as_it_does_in_numpy(
    device: dml.Device, rng: np.random.Generator
) -> None:
    data = _data(rng)
    found = _train_on_device(device, *data)
    expected = _train_in_numpy(*data)
    assert found[-1] < found[0] / 8
    # Rounding moves the parameters by little more than 2^-24 in each step, and the loss as little.
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # Results do not depend on the order of invocations, so another run gives the same bits.
    assert _train_on_device(device, *data) == found
