"""Trains a small network on the device: python examples/train.py [steps]

A spiral of three arms is learnt by two layers. NumPy-like operators compute forwards and backwards;
DirectML's ADAM_OPTIMIZER updates the weights in place. Only the loss is read, once in a while.
"""

from __future__ import annotations

import sys

import numpy as np

import kompute_dml as dml

POINTS, ARMS, HIDDEN = 300, 3, 64


def spiral(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points in the plane, and the arm that each lies on as a row of 0 and 1."""
    arm = np.arange(POINTS) % ARMS
    far = rng.uniform(0.1, 1, POINTS)
    angle = far * 5 + arm * 2 * np.pi / ARMS + rng.normal(0, 0.1, POINTS)
    points = np.stack([far * np.cos(angle), far * np.sin(angle)], 1)
    return points.astype(np.float32), np.eye(ARMS, dtype=np.float32)[arm]


class Weights:
    """A matrix, and what Adam remembers of its gradients."""

    def __init__(self, values: np.ndarray) -> None:
        self.value = dml.asarray(values[None, None])  # the operator takes four dimensions
        self.first, self.second = dml.zeros_like(self.value), dml.zeros_like(self.value)

    @property
    def matrix(self) -> dml.Tensor:
        return self.value[0, 0]

    def update(self, gradient: dml.Tensor, step: dml.Tensor) -> None:
        state = (self.value, self.first, self.second)
        self.value, self.first, self.second = dml.adam_optimizer(
            *state, gradient[None, None], step, learning_rate=0.01, beta1=0.9, beta2=0.999,
            epsilon=1e-8)


def train(steps: int = 300, every: int = 50) -> list[float]:
    """The losses, and a network that has learnt."""
    rng = np.random.default_rng(0)
    points, arms = map(dml.asarray, spiral(rng))
    one = dml.ones(POINTS, 1)
    x = dml.concatenate([points, one], axis=1)  # the ones stand for biases
    first = Weights(rng.normal(0, 1, (3, HIDDEN)).astype(np.float32))
    second = Weights(rng.normal(0, 0.3, (HIDDEN, ARMS)).astype(np.float32))
    losses = []
    for step in range(1, steps + 1):
        before = x @ first.matrix
        hidden = dml.relu(before)
        guess = dml.softmax(hidden @ second.matrix, axis=1)
        if step % every == 0 or step == 1:
            losses.append(float(-(arms * np.log(guess)).sum(axis=1).mean()))
            print(f"step {step:4}: loss {losses[-1]:.4f}")
        apart = (guess - arms) / POINTS
        at_hidden = dml.activation_relu_grad(before, apart @ second.matrix.T)
        count = dml.full((1, 1, 1, 1), step, dtype="uint32")
        second.update(hidden.T @ apart, count)
        first.update(x.T @ at_hidden, count)
    right = guess.argmax(axis=1) == arms.argmax(axis=1)
    print(f"{float(right.mean()):.0%} of {POINTS} points are told right")
    return losses


if __name__ == "__main__":
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
