"""Names of functions in NumPy, PyTorch and ONNX."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.hints import ALIASES
from kompute_dml.names import NAMES
from kompute_dml.tensors.attached import UFUNCS

_OF_TRUTH = ("logical_and", "logical_or", "logical_xor", "logical_not")


def test_names_are_those_of_functions_here_and_there() -> None:
    assert [name for name in NAMES if not hasattr(dml, name)] == []
    known = [name for names in NAMES.values() for name in names.numpy.split()]
    assert len(known) > 50 and [n for n in known if not hasattr(np, n) and n != "concat"
                                and n != "bitwise_count"] == []  # of NumPy 2


def test_ufuncs_compute_what_the_record_says(device: dml.Device) -> None:
    """The functions of the record, on the numbers that NumPy's take."""
    compared = 0
    for function, names in NAMES.items():
        for name in UFUNCS.keys() & set(names.numpy.split()):
            ufunc = getattr(np, name)
            of_floats = name not in _OF_TRUTH and any(
                "f" in types.partition("->")[0] for types in ufunc.types)
            x = np.array([[0.25, 3], [1, 6]], np.float32 if of_floats else np.uint32)
            operands = (x, x.T + 1)[: ufunc.nin]
            ours = getattr(dml, function)(*map(dml.tensor, operands))
            numpys = UFUNCS[name](*map(dml.tensor, operands))
            np.testing.assert_array_equal(ours.numpy(), numpys.numpy(), err_msg=name)
            with np.errstate(invalid="ignore", divide="ignore"):
                wanted = ufunc(*operands)
            np.testing.assert_allclose(numpys.numpy(), wanted, rtol=1e-5, err_msg=name)
            compared += 1
    assert compared > 50


@pytest.mark.parametrize(("name", "ours"), [
    ("absolute", "abs"), ("eq", "equal"), ("equal", "logical_equals"), ("mm", "matmul"),
    ("leaky_relu", None), ("conv2d", "convolution")])
def test_aliases(name: str, ours: str | None) -> None:
    assert ALIASES.get(name) == ours
