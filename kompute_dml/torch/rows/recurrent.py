"""One step of LSTM and GRU, and of their gradients.

https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html, and ``GRU.html``
"""

from __future__ import annotations

from ..table import call, lowers
from ..values import Value, rounded_once


def _parts(x: Value, count: int) -> list[Value]:
    """Equal parts of the last dimension."""
    n = x.shape[-1] // count
    return [call("slice.Tensor", x, -1, i * n, (i + 1) * n) for i in range(count)]


def _times(*factors: Value) -> Value:
    product, *others = factors
    for x in others:
        product = call("mul.Tensor", product, x)
    return product


def _plus(*terms: Value | None) -> Value:
    """The sum of what there is."""
    total, *others = [x for x in terms if x is not None]
    for x in others:
        total = call("add.Tensor", total, x)
    return total


def _without(x: Value) -> Value:
    """``1 - x``."""
    return call("rsub.Scalar", x, 1)


def _slope(y: Value) -> Value:
    """The derivative of a sigmoid whose value is ``y``."""
    return _times(y, _without(y))


def _steepness(y: Value) -> Value:
    """The derivative of a hyperbolic tangent whose value is ``y``."""
    return _without(_times(y, y))


@lowers("_thnn_fused_lstm_cell")
@rounded_once
def lstm_cell(of_input: Value, of_hidden: Value, cell: Value, input_bias: Value | None = None,
              hidden_bias: Value | None = None) -> list[Value]:
    """The new state, the new cell, and the gates, which the gradient reads."""
    gates = _plus(of_input, of_hidden, input_bias, hidden_bias)
    i, f, g, o = _parts(gates, 4)
    i, f, o = (call("sigmoid", x) for x in (i, f, o))
    g = call("tanh", g)
    after = _plus(_times(f, cell), _times(i, g))
    return [_times(o, call("tanh", after)), after, call("cat", [i, f, g, o], -1)]


@lowers("_thnn_fused_lstm_cell_backward_impl")
@rounded_once
def lstm_cell_backward(of_state: Value | None, of_cell: Value | None, cell: Value, after: Value,
                       workspace: Value, has_bias: bool) -> list[Value | None]:
    """Gradients of the gates, the cell and the bias."""
    if of_state is None and of_cell is None:
        return [None, None, None]
    i, f, g, o = _parts(workspace, 4)
    squashed = call("tanh", after)
    of_after = of_cell
    if of_state is not None:
        of_after = _plus(of_cell, _times(of_state, o, _steepness(squashed)))
    assert of_after is not None
    of_output = (call("mul.Tensor", o, 0) if of_state is None
                 else _times(of_state, squashed, _slope(o)))
    gates = call("cat", [_times(of_after, g, _slope(i)), _times(of_after, cell, _slope(f)),
                         _times(of_after, i, _steepness(g)), of_output], -1)
    return [gates, _times(of_after, f), _bias(gates, has_bias)]


def _bias(gates: Value, has_bias: bool) -> Value | None:
    return call("sum.dim_IntList", gates, [0]) if has_bias else None


@lowers("_thnn_fused_gru_cell")
@rounded_once
def gru_cell(of_input: Value, of_hidden: Value, state: Value, input_bias: Value | None = None,
             hidden_bias: Value | None = None) -> list[Value]:
    """The new state, and what the gradient reads."""
    r, z, n = _parts(_plus(of_input, input_bias), 3)
    hidden_r, hidden_z, hidden_n = _parts(_plus(of_hidden, hidden_bias), 3)
    r, z = (call("sigmoid", _plus(x, y)) for x, y in ((r, hidden_r), (z, hidden_z)))
    n = call("tanh", _plus(n, _times(r, hidden_n)))
    after = _plus(n, _times(z, call("sub.Tensor", state, n)))
    return [after, call("cat", [r, z, n, state, hidden_n], -1)]


@lowers("_thnn_fused_gru_cell_backward")
@rounded_once
def gru_cell_backward(of_state: Value, workspace: Value, has_bias: bool) -> list[Value | None]:
    """Gradients of the input's gates, the state's gates, the state and both biases."""
    r, z, n, state, hidden_n = _parts(workspace, 5)
    of_z = _times(of_state, call("sub.Tensor", state, n), _slope(z))
    of_n = _times(of_state, _without(z), _steepness(n))
    of_r = _times(of_n, hidden_n, _slope(r))
    of_input = call("cat", [of_r, of_z, of_n], -1)
    of_hidden = call("cat", [of_r, of_z, _times(of_n, r)], -1)
    return [of_input, of_hidden, _times(of_state, z), _bias(of_input, has_bias),
            _bias(of_hidden, has_bias)]
