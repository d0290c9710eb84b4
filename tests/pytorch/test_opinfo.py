"""A part of OpInfo, PyTorch's test database. ``opinfo.py`` runs all of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("expecttest", reason="OpInfo needs expecttest")
pytest.importorskip("kompute_dml.torch")

from kompute_dml.torch.table import LOWERINGS  # noqa: E402
from opinfo import COMPILED, FORWARD, GRADIENT, HOSTED, cases, outcomes  # noqa: E402

NAMES = ("__getitem__", "add", "cumsum", "index_put", "linalg_inv", "masked_fill",
         "nn_functional_avg_pool2d", "nn_functional_embedding", "nn_functional_hardshrink",
         "scatter_reduce_mean", "signbit", "sort", "special_bessel_y1")
OTHERS = (("sort", "bool"), ("pow", "int64"), ("__rpow__", "int64"),
          ("bitwise_left_shift", "int64"), ("bitwise_right_shift", "int64"), ("topk", "int64"),
          ("div_trunc_rounding", "int64"), ("addcdiv", "float16"), ("expm1", "float16"),
          ("topk", "bfloat16"), ("kthvalue", "bfloat16"), ("sort", "bfloat16"),
          ("native_group_norm", "bfloat16"), ("addcmul", "bfloat16"), ("signbit", "bfloat16"),
          ("_softmax_backward_data", "float16"), ("nn_functional_adaptive_avg_pool2d", "float16"))
"""Operators of other types, with those types."""
GRADIENTS = ("_upsample_bilinear2d_aa", "cdist", "grid_sampler_2d", "grid_sampler_3d",
             "index_fill", "nextafter", "nn_functional_embedding_bag",
             "nn_functional_multi_margin_loss", "nn_functional_multilabel_margin_loss",
             "nn_functional_pdist", "sgn")
GRAPHS = ("__getitem__", "index_put", "linalg_inv", "nn_functional_layer_norm", "sort",
          "var_mean")
"""Operators through torch.compile."""
NO_GRADIENT = ("signbit", "special_bessel_y1")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")


@functools.cache
def operators(mode: str, dtype: str = "float32") -> dict[str, Any]:
    return {op.formatted_name: op for op in cases(getattr(torch, dtype), mode)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [FORWARD, GRADIENT])
def test_operator(name: str, mode: str) -> None:
    if mode == GRADIENT and name in NO_GRADIENT:
        assert name not in operators(mode)
        return
    found = outcomes(operators(mode)[name], torch.float32, mode, 1)
    assert [kind for kind, _ in found] == ["pass"], found


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    if name not in operators(GRADIENT):
        pytest.skip("this release has no gradient of it")
    found = outcomes(operators(GRADIENT)[name], torch.float32, GRADIENT, 2)
    assert {kind for kind, _ in found} == {"pass"}, found


@pytest.mark.parametrize("name, dtype", OTHERS)
def test_operator_of_another_type(name: str, dtype: str) -> None:
    if name not in operators(FORWARD, dtype):
        pytest.skip("this release has no such entry")
    found = outcomes(operators(FORWARD, dtype)[name], getattr(torch, dtype), FORWARD, 2)
    assert {kind for kind, _ in found} == {"pass"}, found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("where", [COMPILED, HOSTED])
@pytest.mark.parametrize("mode", [FORWARD, GRADIENT])
def test_graph(name: str, where: str, mode: str) -> None:
    if name == "index_put" and mode == GRADIENT:
        name = "index_add"  # PyTorch traces no gradient of the other
    found = outcomes(operators(where + mode)[name], torch.float32, where + mode, 1)
    assert [kind for kind, _ in found] == ["pass"], found


def test_graphs_are_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value of a graph is found."""
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.sin.default, LOWERINGS[
        torch.ops.aten.cos.default])
    for where in (COMPILED, HOSTED):
        found = outcomes(operators(FORWARD)["sin"], torch.float32, where + FORWARD, 1)
        assert [kind for kind, _ in found] == ["wrong"], found
