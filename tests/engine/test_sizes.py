"""Open sizes: code that runs over expressions gives what it gives for numbers, or says why not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kompute_dml.layout import coalesce, packed_strides, reshape_strides
from kompute_dml.lowering.walk import Walk
from kompute_dml.sizes import (
    Line,
    MixedTraces,
    SizeTrace,
    about,
    evaluator,
    numbers,
    said,
    value_of,
    whole,
    within,
)


def _arithmetic(n: int, m: int) -> list[object]:
    return [
        n * 4 + 3, (n * m + 7) // 8, -(-n // 4) * 4, (n + m) % 5, (4 * n + 3) & ~3, n & 7,
        n * m - m * n, (n - 1).bit_length(),
        1 << (n - 1).bit_length(), *divmod(n * 3, 4),
        100 // n, 100 % n,
        (n * 3 + 5 * m) // m, n * 0.5 + m / 3, -(-n * 4096 // (m * 4)), n * 8 % (m * 3),
        100 // (2 * n), 7 - n, n & m, n | 5, n ^ m, n << 2, n >> 1, abs(n - m), math.ceil(n / m),
        n * m * 6 // (n * 4), (n * m * 4 + 3 * n) // n, (n + m) * 12 // (4 * n + 4 * m),
        (n * m + n) % (n * 2), (n * n - n * m) // (2 * n),
        math.floor(n / m), round(n * 1.5), 2.5 * n - m, n // 2.0, n % 1.5, 2 ** (n / 8), ~n,
        -n // 3,
    ]


def _decisions(n: int, m: int) -> list[object]:
    return [
        n < m, n == m, n != m, n * 2 > m + 7, n % 4 == 0, n / m < 1.5, max(n, m), min(n * 2, m + 5),
        bool(n - 1), n >= 3, n <= 7, 4 in (n, m), sorted([n, m, 9]), n == 2.5, n < 5.5, m > 3.5,
        [x for x in range(3) if x < n], n - 3 == m, (n, 4) == (m, 4),
    ]


def _layouts(n: int, m: int) -> list[object]:
    walk = Walk((2, n, m), packed_strides((2, n, m)), (m, 0, 1))
    return [*walk.words, walk.count, *coalesce((n, 1, m), (m, m, 1))[0],
            *(reshape_strides((n, m), (1, n), (m, n)) or ()),
            *(reshape_strides((2, n, m), (n * m, 1, n), (2, n, m)) or ())]


def _texts(n: int, m: int) -> list[object]:
    return [len(str(n)), [0] * int(m), np.arange(6)[: int(n)].tolist(), f"{n}", math.log2(m)]


def _holds(trace: SizeTrace) -> Callable[[Sequence[int]], bool]:
    """Tells for which values of its variables a trace holds."""
    line = Line(trace)
    return lambda values: line.of(values) is not None


def _flat(x: object) -> list[object]:
    return [z for y in x for z in _flat(y)] if isinstance(x, (list, tuple)) else [x]


@pytest.mark.parametrize("code", [_arithmetic, _decisions, _layouts, _texts])
def test_a_trace_holds_for_the_values_that_its_guards_let_through(
    code: Callable[[int, int], list[object]], rng: np.random.Generator
) -> None:
    others = 0
    for _ in range(60):
        at = tuple(rng.integers(1, 24, 2).tolist())
        trace = SizeTrace()
        results = _flat(code(*[trace.variable(n) for n in at]))
        assert [value_of(x) for x in results] == _flat(code(*at))
        holds, values = _holds(trace), evaluator(trace, [
            x for x in results if not isinstance(x, (str, bool))])
        assert holds(at)
        for n in range(1, 24):
            for m in range(1, 24, 3):
                if holds((n, m)):
                    others += (n, m) != at
                    assert values(n, m) == [
                        x for x in _flat(code(n, m)) if not isinstance(x, (str, bool))]
    # What takes the numbers themselves serves nothing else.
    assert (others > 0) == (code is not _texts)


def test_each_comparison_is_a_guard() -> None:
    trace = SizeTrace()
    n = trace.variable(8)
    assert n % 4 == 0 and not n < 5
    holds = _holds(trace)
    assert [k for k in range(1, 20) if holds([k])] == [8, 12, 16]


def test_what_holds_for_all_sizes_is_no_guard() -> None:
    trace = SizeTrace()
    n = trace.variable(8)
    assert n + 1 > 0 and n * 4 >= 0 and n + 3 != 0 and n * 2 - n - n == 0 and not n * 4 % 2
    assert not trace.guards
    assert n > 0  # 0 is a value
    assert len(trace.guards) == 1


def test_code_that_takes_the_number_is_named() -> None:
    trace = SizeTrace()
    trace.label = "a node"
    n = trace.variable(3)
    assert [0] * int(n * 2) == [0] * 6
    (settled,) = trace.settled
    assert settled.expression == "(n0*2)" and settled.label == "a node"
    assert "test_sizes.py" in settled.place
    assert [k for k in range(9) if _holds(trace)([k])] == [3]


def test_values_for_which_the_code_would_fail_are_not_served() -> None:
    trace = SizeTrace()
    n = trace.variable(8)
    assert 64 // (n - 4) == 16
    holds = _holds(trace)
    assert holds([8]) and not holds([4]) and not holds([5])


def test_sizes_of_two_traces_do_not_mix() -> None:
    n, m = SizeTrace().variable(3), SizeTrace().variable(3)
    for mixes in (lambda: n + m, lambda: n < m, lambda: n * 0.5 < m, lambda: n // m):
        with pytest.raises(MixedTraces):
            mixes()
    assert n not in {m: 1}


def test_common_factors_of_a_quotient_cancel_out() -> None:
    trace = SizeTrace()
    n, m = trace.variable(7), trace.variable(5)
    for quotient in (n * 384 // (n * 32), (n + m) * 12 // (m + n), n * m * 24 // (2 * m * n)):
        assert type(quotient) is int and quotient == 12
    assert (n * m * 3 + n) // n == m * 3 + 1


def test_variables_are_those_that_sizes_depend_on() -> None:
    trace = SizeTrace()
    n, _, last = (trace.variable(k) for k in (44, 7, 5))
    assert trace.variables_of([n * 384, (n + 3) // 4, 5]) == [0]
    assert trace.variables_of([last // (n + 1)]) == [0, 2] and trace.variables_of([5]) == []


@pytest.mark.parametrize("at, alike", [
    (0, [0]), (1, [1]), (2, [2]), (3, [3]), (5, [4, 5]), (6, [6, 7]), (8, [8, 9, 10, 11]),
    (44, [*range(32, 48)])])
def test_small_sizes_are_about_as_large_as_few_others(at: int, alike: list[int]) -> None:
    assert [k for k in range(60) if about(k) == about(at)] == alike


def test_messages_and_ranges_take_no_numbers() -> None:
    trace = SizeTrace()
    n = trace.variable(1_000_000)
    assert said(n) == "1000000" and said(3) == "3" and not trace.guards
    assert within(n, range(5, 1_000_001)) and not within(n, range(1_000_000))
    assert len(trace.guards) <= 3 and not trace.settled


def test_arrays_of_sizes() -> None:
    trace = SizeTrace()
    n = trace.variable(5)
    line = np.concatenate([numbers([n, 2]), numbers([7])])
    assert [value_of(x) for x in np.take(line, [2, 0])] == [7, 5] and not trace.settled
    assert whole(line[0]) is n and whole(np.int64(4)) == 4
    assert line.astype(np.int64).tolist() == [5, 2, 7] and trace.settled


def test_a_line_has_the_numbers_of_a_trace() -> None:
    """Equal expressions are one number, and there are none where a guard fails."""
    trace = SizeTrace()
    n, m = (trace.variable(v) for v in (8, 3))
    assert n % 4 == 0 and m < 9 and 100 // m == 33
    line = Line(trace)
    wanted = [(n // 3 + m, lambda a, b: a // 3 + b), (m + n // 3, lambda a, b: a // 3 + b),
              (7, lambda a, b: 7), (m * 5, lambda a, b: 5 * b), (-2, lambda a, b: -2),
              (7, lambda a, b: 7), (n // (m + 1), lambda a, b: a // (b + 1))]
    places = [line.add(number) for number, _ in wanted]
    assert places[0] == places[1] and places[2] == places[5] and len(set(places)) == 5
    assert line.settled == [7, -2] and [i for i in places if i < 0] == [-1, -2, -1]
    for a, b in ((8, 3), (40, 3), (0, 3)):
        numbers = line.of((a, b))
        assert numbers is not None
        numbers = [*numbers, *reversed(line.settled)]  # so -1 is the first of these
        assert [numbers[i] for i in places] == [expected(a, b) for _, expected in wanted]
    for a, b in ((9, 3), (8, 9), (8, 0), (8, 4)):
        assert line.of((a, b)) is None
    with pytest.raises(TypeError, match="whole number"):
        line.add(n / 2)
    with pytest.raises(MixedTraces):
        line.add(SizeTrace().variable(8))
