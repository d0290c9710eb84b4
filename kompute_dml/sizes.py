"""Sizes that a plan does not settle: whole numbers that are expressions of a few variables.

A :class:`SizeTrace` runs code over them as over numbers. Each is a :class:`Size`, which has a value
for now, and the expression. It is no ``int``. What the code decides by a value is noted as a guard:
what comes out holds for all values of the variables for which the guards come out as they did.
Where code takes the number itself (an index, a text), the guard is that the expression has this
value. So code that knows nothing of expressions gives results that are less general, never wrong.

An expression is a polynomial. Its factors are variables, and what is no polynomial of these, such
as quotients that are rounded down. Variables are at least 0.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

Term: TypeAlias = "tuple[tuple[int, ...], int]"
"""The factors of a product, by their numbers in the trace, and what it is multiplied by."""
Terms: TypeAlias = "tuple[Term, ...]"
"""A sum of products, in order."""
_Argument: TypeAlias = "Terms | float"
_Number: TypeAlias = Any
"""An open number, or an ``int`` where nothing is left open, or NotImplemented."""

_Result = TypeVar("_Result")

_FORMS: dict[str, tuple[str, Callable[..., float]]] = {
    "//": ("({} // {})", lambda a, b: a // b),
    "/": ("({} / {})", lambda a, b: a / b),
    "+": ("({} + {})", lambda a, b: a + b),
    "-": ("({} - {})", lambda a, b: a - b),
    "*": ("({} * {})", lambda a, b: a * b),
    "%": ("({} % {})", lambda a, b: a % b),
    "**": ("({} ** {})", lambda a, b: a ** b),
    "<<": ("({} << {})", lambda a, b: a << b),
    "&": ("({} & {})", lambda a, b: a & b),
    "|": ("({} | {})", lambda a, b: a | b),
    "^": ("({} ^ {})", lambda a, b: a ^ b),
    "<": ("({} < {})", lambda a, b: a < b),
    "==": ("({} == {})", lambda a, b: a == b),
    "negative": ("(-{})", lambda a: -a),
    "absolute": ("abs({})", abs),
    "round": ("round({})", round),
    "ceil": ("math.ceil({})", math.ceil),
    "floor": ("math.floor({})", math.floor),
    "int": ("int({})", int),
    "bits": ("({}).bit_length()", lambda a: a.bit_length()),
}
"""What a factor may be: how Python writes it, and what it is."""


class MixedTraces(Exception):
    """A size of another trace came along."""


class TooLarge(Exception):
    """Expressions grew beyond use."""


MAX_FACTORS, MAX_GUARDS, MAX_TERMS = 4096, 2048, 64
"""The most of a trace, and the most terms of a sum."""


class Settled(NamedTuple):
    """Where code took a number itself."""

    expression: str
    place: str
    """In the code."""
    label: str
    """What was traced."""


class SizeTrace:
    """Variables, and what was decided by their values."""

    def __init__(self) -> None:
        self.label = ""
        """What is traced now, for :attr:`settled`."""
        self.settled: list[Settled] = []
        self.guards: dict[tuple[str, Terms], bool] = {}
        """Comparisons with 0, or truths, and what came out."""
        self.variables: list[str] = []
        self.factors: list[tuple[str, tuple[_Argument, ...]]] = []
        """What is multiplied: variables, by their numbers, and what is no polynomial of them."""
        self.values: list[float] = []
        """Those of the factors, for now."""
        self._numbers: dict[tuple[str, tuple[_Argument, ...]], int] = {}

    def variable(self, value: int) -> int:
        """A new variable, a :class:`Size` whose value is this for now."""
        self.variables.append(f"n{len(self.variables)}")
        i = self._factor("variable", (len(self.variables) - 1,), value)
        return cast("int", _Size(self, (((i,), 1),), value))

    def _factor(self, kind: str, arguments: tuple[_Argument, ...], value: float) -> int:
        key = kind, arguments
        i = self._numbers.get(key)
        if i is None:
            if len(self.factors) >= MAX_FACTORS:
                raise TooLarge(f"more than {MAX_FACTORS} factors")
            i = self._numbers[key] = len(self.factors)
            self.factors.append(key)
            self.values.append(value)
        return i

    def apply(self, kind: str, *arguments: object) -> _OpenNumber:
        """A number that is no polynomial of others."""
        numbers: list[_Argument] = []
        for x in arguments:
            if isinstance(x, _OpenNumber) and x.trace is not self:
                raise MixedTraces
            numbers.append(x.terms if isinstance(x, _OpenNumber) else cast("float", x))
        value = _FORMS[kind][1](*map(value_of, arguments))
        terms = (((self._factor(kind, tuple(numbers), value),), 1),)
        return (_Real if isinstance(value, float) else _Size)(self, terms, value)

    def attempt(self, code: Callable[[], _Result]) -> _Result | None:
        """What ``code`` gives. None, as if it had not run, if it takes numbers themselves, or no
        expressions."""
        guards, settled_before = len(self.guards), len(self.settled)
        try:
            result = code()
            if len(self.settled) == settled_before:
                return result
        except TypeError:
            pass
        del self.settled[settled_before:]
        for key in [*self.guards][guards:]:
            del self.guards[key]
        return None

    def holds(self, kind: str, terms: Terms, outcome: bool) -> bool:
        """Note a guard, unless it always comes out so. Returns its outcome."""
        if not self._always(kind, terms):
            if len(self.guards) >= MAX_GUARDS:
                raise TooLarge(f"more than {MAX_GUARDS} guards")
            self.guards.setdefault((kind, terms), outcome)
        return outcome

    def _always(self, kind: str, terms: Terms) -> bool:
        """Whether variables of 0 and more decide nothing."""
        if kind == "true":
            return False
        signs = {n > 0 for _, n in terms}
        if len(signs) > 1 or any(
                self.factors[i][0] != "variable" for factors, _ in terms for i in factors):
            return False
        return terms[0][0] == () or (kind == "<" and True in signs)

    def variables_of(self, sizes: Iterable[int]) -> list[int]:
        """The numbers of the variables in sizes, in order."""
        factors = self._variables_of(x.terms for x in sizes if isinstance(x, Size))
        return sorted(cast("int", self.factors[i][1][0]) for i in factors)

    def _variables_of(self, expressions: Iterable[Terms]) -> set[int]:
        variables = set[int]()
        for i in {i for terms in expressions for factors, _ in terms for i in factors}:
            kind, arguments = self.factors[i]
            if kind == "variable":
                variables.add(i)
            else:
                variables |= self._variables_of(x for x in arguments if isinstance(x, tuple))
        return variables

    def text(self, terms: Terms) -> str:
        """An expression, for people."""
        return _Code(self, apart=False).of(terms)


class _Code:
    """Python code for expressions."""

    def __init__(self, trace: SizeTrace, *, apart: bool = True) -> None:
        """What several expressions have in common is computed once, ``apart`` from them."""
        self._trace, self._apart = trace, apart
        self.lines: list[str] = []
        self._names: dict[int, str] = {}
        self._by_text: dict[str, str] = {}

    def of(self, x: _Argument) -> str:
        """An expression. What it needs is among the lines."""
        if not isinstance(x, tuple):
            return repr(x) if math.isfinite(x) else f"float('{x}')"
        parts = []
        for factors, times in x:
            names = [self._factor(i) for i in factors]
            if times != 1 or not names:
                names.append(str(times) if times >= 0 else f"({times})")
            parts.append("*".join(names))
        text = " + ".join(parts) or "0"
        return text if text.isidentifier() else f"({text})"

    def _factor(self, i: int) -> str:
        name = self._names.get(i)
        if name is not None:
            return name
        kind, arguments = self._trace.factors[i]
        if kind == "variable":
            (number,) = arguments
            name = self._trace.variables[cast("int", number)]
        else:
            name = _FORMS[kind][0].format(*map(self.of, arguments))
            if self._apart:
                text, name = name, self._by_text.get(name, f"f{len(self._by_text)}")
                if text not in self._by_text:
                    self._by_text[text] = name
                    self.lines.append(f" {name} = {text}")
        self._names[i] = name
        return name

    def end_unless_guarded(self) -> None:
        """End the function with no values where a guard of the trace comes out otherwise. So no
        later line divides by 0."""
        for (kind, terms), outcome in self._trace.guards.items():
            test = self.of(terms) if kind == "true" else f"{self.of(terms)} {kind} 0"
            line = f" if {'not ' if outcome else ''}({test}): return []"
            if line not in self._by_text:
                self._by_text[line] = ""
                self.lines.append(line)


class Line:
    """Whole numbers of a trace: those that its variables change, and those that none does."""

    def __init__(self, trace: SizeTrace) -> None:
        self._trace, self._code = trace, _Code(trace)
        self._code.end_unless_guarded()
        self._open: dict[str, int] = {}
        self._settled: dict[int, int] = {}
        self._function: Callable[..., list[int]] | None = None

    def add(self, number: object) -> int:
        """The place of a number among those of :meth:`of`, or among :attr:`settled` for -1 (the
        first one) and below. Raises TypeError for what is no whole number."""
        if type(number) is _Size:
            if number.trace is not self._trace:
                raise MixedTraces
            self._function = None
            return self._open.setdefault(self._code.of(number.terms), len(self._open))
        if not isinstance(number, _WHOLE):
            raise TypeError(f"expected a whole number, but got {number!r}")
        return -1 - self._settled.setdefault(int(number), len(self._settled))

    @property
    def settled(self) -> list[int]:
        """The numbers that no variable changes."""
        return [*self._settled]

    def of(self, values: Sequence[int]) -> list[int] | None:
        """The numbers for these values of the variables, and a 0. None where the trace does not
        hold."""
        if self._function is None:
            self._function = _function(
                self._trace, self._code, f" return [{', '.join([*self._open, '0'])}]")
        try:
            return self._function(*values) or None
        except (ArithmeticError, ValueError):
            return None


def about(n: int) -> int:
    """Equal for numbers that are about as large: there are two steps between powers of two."""
    step = max(n.bit_length() - 2, 0)
    return n >> step << step


def evaluator(trace: SizeTrace, numbers: Iterable[object]) -> Callable[..., list[int]]:
    """A function of the variables that gives the values of ``numbers``."""
    code = _Code(trace)
    results = []
    for x in numbers:
        if isinstance(x, _OpenNumber) and x.trace is not trace:
            raise MixedTraces
        results.append(code.of(x.terms if isinstance(x, _OpenNumber) else cast("float", x)))
    return _function(trace, code, f" return [{', '.join(results)}]")


def _function(trace: SizeTrace, code: _Code, end: str) -> Callable[..., list[int]]:
    source = "\n".join([f"def values({', '.join(trace.variables)}):", *code.lines, end])
    space: dict[str, Callable[..., list[int]]] = {}
    exec(source, {"math": math}, space)  # only numbers, and names of this module
    return space["values"]


def value_of(x: object) -> int:
    """The value for now. It is noted nowhere."""
    return cast("int", x.value if isinstance(x, _OpenNumber) else x)


def said(x: object) -> str:
    """The value for now, for a message that no plan depends on."""
    return str(value_of(x))


def within(n: int, bounds: range) -> bool:
    """``n in bounds``, which looks at each number of the range for an open size."""
    return bounds.start <= n < bounds.stop


def is_open(x: object) -> bool:
    """Whether it is a size that a plan does not settle."""
    return type(x) is _Size


def any_open(values: Iterable[object]) -> bool:
    """Whether one of them is."""
    return any(type(x) is _Size for x in values)


def whole(x: float | np.number[Any] | np.ndarray) -> int:
    """``int(x)``, but an open size stays one."""
    return x if isinstance(x, Size) else int(x)


def numbers(values: Sequence[int]) -> np.ndarray:
    """A line of INT64. Where one is open, its elements are objects."""
    if not any_open(values):
        return np.array(values, np.int64)
    line = np.empty(len(values), object)
    line[:] = values
    return line


def settled(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Elements of a type instead of objects."""
    return x.astype(dtype) if x.dtype == object else x


class Shaped(NamedTuple):
    """What stands for an array of open sizes where only these count."""

    shape: tuple[int, ...]
    size: int


_WHOLE = (int, np.integer, np.bool_)
_FLOATS = (float, np.floating)


def _where() -> str:
    """The line of code that takes a number."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return ""
    name = frame.f_code.co_filename
    return f"{name[max(name.rfind('kompute_dml'), 0):]}:{frame.f_lineno}"


class _OpenNumber:
    """A number that is an expression."""

    __slots__ = ("_hash", "terms", "trace", "value")
    __array_ufunc__ = None

    def __init__(self, trace: SizeTrace, terms: Terms, value: float) -> None:
        self.trace, self.terms = trace, terms
        self.value = value
        self._hash: int | None = None

    def __hash__(self) -> int:
        # That of the expression, not of the number: tables find equal expressions.
        if self._hash is None:
            self._hash = hash((id(self.trace), self.terms))
        return self._hash

    def __repr__(self) -> str:
        return f"{self.trace.text(self.terms)} = {self.value}"

    def _settle(self) -> float:
        """The value, which is noted."""
        self.trace.settled.append(
            Settled(self.trace.text(self.terms), _where(), self.trace.label))
        self._truth("==", self, self.value)
        return self.value

    def _truth(self, kind: str, a: object, b: object) -> bool:
        x = self.trace.apply(kind, a, b)
        return self.trace.holds("true", x.terms, bool(x.value))

    def _apply(self, kind: str, a: object, b: object) -> _Number:
        other = b if a is self else a
        if isinstance(other, _WHOLE):
            other = int(other)
        elif isinstance(other, _FLOATS):
            other = float(other)
        elif not isinstance(other, _OpenNumber):
            return NotImplemented
        return self.trace.apply(kind, *((self, other) if a is self else (other, self)))

    def _compare(self, kind: str, a: object, b: object) -> bool:
        other = b if a is self else a
        if not isinstance(other, (*_WHOLE, *_FLOATS, _OpenNumber)):
            return NotImplemented
        return self._truth(kind, a, b)

    def __float__(self) -> float:
        return float(self._settle())

    def __format__(self, spec: str) -> str:
        return format(self._settle(), spec)

    def __str__(self) -> str:
        return str(self._settle())

    def __reduce__(self) -> str:
        raise TypeError("an open size is no value to keep")

    def __truediv__(self, other: object) -> _Number:
        return self._apply("/", self, other)

    def __rtruediv__(self, other: object) -> _Number:
        return self._apply("/", other, self)

    def __pow__(self, other: object) -> _Number:
        return self._apply("**", self, other)

    def __rpow__(self, other: object) -> _Number:
        return self._apply("**", other, self)

    def __lt__(self, other: object) -> bool:
        return self._compare("<", self, other)

    def __gt__(self, other: object) -> bool:
        return self._compare("<", other, self)

    def __eq__(self, other: object) -> bool:
        return self._compare("==", self, other)

    def __le__(self, other: object) -> bool:
        above = self.__gt__(other)
        return above if above is NotImplemented else not above

    def __ge__(self, other: object) -> bool:
        below = self.__lt__(other)
        return below if below is NotImplemented else not below

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __bool__(self) -> bool:
        return not self.__eq__(0)


class _Real(_OpenNumber):
    """A float that is an expression."""

    __slots__ = ()
    __hash__ = _OpenNumber.__hash__

    def __int__(self) -> int:
        return cast("int", self.trace.apply("int", self)._settle())

    def __add__(self, other: object) -> _Number:
        return self._apply("+", self, other)

    def __radd__(self, other: object) -> _Number:
        return self._apply("+", other, self)

    def __sub__(self, other: object) -> _Number:
        return self._apply("-", self, other)

    def __rsub__(self, other: object) -> _Number:
        return self._apply("-", other, self)

    def __mul__(self, other: object) -> _Number:
        return self._apply("*", self, other)

    def __rmul__(self, other: object) -> _Number:
        return self._apply("*", other, self)

    def __floordiv__(self, other: object) -> _Number:
        return self._apply("//", self, other)

    def __rfloordiv__(self, other: object) -> _Number:
        return self._apply("//", other, self)

    def __mod__(self, other: object) -> _Number:
        return self._apply("%", self, other)

    def __neg__(self) -> _OpenNumber:
        return self.trace.apply("negative", self)

    def __abs__(self) -> _OpenNumber:
        return self.trace.apply("absolute", self)

    def __round__(self) -> _OpenNumber:
        return self.trace.apply("round", self)

    def __ceil__(self) -> _OpenNumber:
        return self.trace.apply("ceil", self)

    def __floor__(self) -> _OpenNumber:
        return self.trace.apply("floor", self)


class _Size(_OpenNumber):
    """A whole number that is an expression."""

    __slots__ = ()
    stays_open = True
    """For modules that import no NumPy."""
    __hash__ = _OpenNumber.__hash__

    def _other(self, other: object) -> tuple[Terms, int] | None:
        """The terms and the value of another whole number."""
        if type(other) is _Size:
            if other.trace is not self.trace:
                raise MixedTraces
            return other.terms, value_of(other)
        if isinstance(other, _WHOLE):
            n = int(other)
            return ((((), n),) if n else ()), n
        return None

    def _sum(self, times: int, other: object, more: int) -> _Number:
        """``times`` this and ``more`` times the other."""
        o = self._other(other)
        if o is None:
            return NotImplemented
        terms = {f: more * n for f, n in o[0]}
        for f, n in self.terms:
            terms[f] = terms.get(f, 0) + times * n
        return _sized(self.trace, terms, times * value_of(self) + more * o[1])

    def _with_float(self, other: object) -> bool:
        return isinstance(other, (*_FLOATS, _Real))

    def __add__(self, other: object) -> _Number:
        return self._apply("+", self, other) if self._with_float(other) else self._sum(1, other, 1)

    def __radd__(self, other: object) -> _Number:
        return self._apply("+", other, self) if self._with_float(other) else self._sum(1, other, 1)

    def __sub__(self, other: object) -> _Number:
        return self._apply("-", self, other) if self._with_float(other) else self._sum(
            1, other, -1)

    def __rsub__(self, other: object) -> _Number:
        return self._apply("-", other, self) if self._with_float(other) else self._sum(
            -1, other, 1)

    def __neg__(self) -> _Number:
        return self._sum(-1, 0, 1)

    def __pos__(self) -> _Size:
        return self

    def __abs__(self) -> _Number:
        return self if self >= 0 else -self

    def __invert__(self) -> _Number:
        return self._sum(-1, 1, -1)

    def __mul__(self, other: object) -> _Number:
        if self._with_float(other):
            return self._apply("*", self, other)
        o = self._other(other)
        if o is None:
            return NotImplemented
        terms: dict[tuple[int, ...], int] = {}
        for f, n in self.terms:
            for g, m in o[0]:
                key = tuple(sorted((*f, *g)))
                terms[key] = terms.get(key, 0) + n * m
        return _sized(self.trace, terms, value_of(self) * o[1])

    def __rmul__(self, other: object) -> _Number:
        return self._apply("*", other, self) if self._with_float(other) else self.__mul__(other)

    def __floordiv__(self, other: object) -> _Number:
        if self._with_float(other):
            return self._apply("//", self, other)
        o = self._other(other)
        if o is None:
            return NotImplemented
        if not other:
            raise ZeroDivisionError("integer division or modulo by zero")
        if isinstance(other, _Size):
            return self._by_size(other)
        # What is divided without a rest comes out of the quotient.
        by = o[1]
        out = {f: n // by for f, n in self.terms if n % by == 0}
        outside = _sized(self.trace, out, sum(n * self._product(f) for f, n in out.items()))
        rest = _sized(self.trace, {f: n for f, n in self.terms if n % by},
                      value_of(self) - by * value_of(outside))
        return outside + (self.trace.apply("//", rest, by) if is_open(rest) else rest // by)

    def _by_size(self, other: _Size) -> _Number:
        """The quotient by another one, which is not 0. Factors of all terms cancel out."""
        common = functools.reduce(operator.and_, (
            Counter(factors) for factors, _ in (*self.terms, *other.terms)))
        a, b = (_sized(self.trace, {
            tuple(sorted((Counter(factors) - common).elements())): n for factors, n in x.terms},
            value_of(x) // self._product(tuple(common.elements()))) for x in (self, other))
        if isinstance(b, int):
            return a // b
        if isinstance(a, _Size) and [f for f, _ in a.terms] == [f for f, _ in b.terms]:
            (n, m), *rest = [(n, m) for (_, n), (_, m) in zip(a.terms, b.terms)]
            if n % m == 0 and all(i == n // m * j for i, j in rest):
                return n // m
        return self.trace.apply("//", a, b)

    def _product(self, factors: tuple[int, ...]) -> int:
        return math.prod(cast("int", self.trace.values[i]) for i in factors)

    def __rfloordiv__(self, other: object) -> _Number:
        if not self._with_float(other) and self._other(other) is None:
            return NotImplemented
        if not self:
            raise ZeroDivisionError("integer division or modulo by zero")
        return self._apply("//", other, self)

    def __mod__(self, other: object) -> _Number:
        if self._with_float(other):
            return self._apply("%", self, other)
        if self._other(other) is None:
            return NotImplemented
        return self - (self // other) * other

    def __rmod__(self, other: object) -> _Number:
        if self._with_float(other):
            return self._apply("%", other, self)
        if self._other(other) is None:
            return NotImplemented
        return -(self.__rfloordiv__(other) * self) + other

    def __divmod__(self, other: object) -> tuple[_Number, _Number]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[_Number, _Number]:
        return self.__rfloordiv__(other), self.__rmod__(other)

    def __lshift__(self, other: object) -> _Number:
        if isinstance(other, _WHOLE):
            return self * (1 << int(other))
        return self._apply("<<", self, other)

    def __rlshift__(self, other: object) -> _Number:
        return self._apply("<<", other, self)

    def __rshift__(self, other: object) -> _Number:
        return self // (1 << int(other)) if isinstance(other, _WHOLE) else NotImplemented

    def __and__(self, other: object) -> _Number:
        if isinstance(other, _WHOLE):
            n = int(other)
            if n < 0 and -n & (-n - 1) == 0:  # all bits but the last ones
                return self // -n * -n
            if n >= 0 and n & (n + 1) == 0:  # the last bits
                return self % (n + 1)
        return self._apply("&", self, other)

    __rand__ = __and__

    def __or__(self, other: object) -> _Number:
        return self._apply("|", self, other)

    __ror__ = __or__

    def __xor__(self, other: object) -> _Number:
        return self._apply("^", self, other)

    __rxor__ = __xor__

    def bit_length(self) -> _OpenNumber:
        """The bits of the number."""
        return self.trace.apply("bits", self)

    def __round__(self, digits: int | None = None) -> _Size:
        return self

    __ceil__ = __floor__ = __trunc__ = __pos__

    def __index__(self) -> int:
        return cast("int", self._settle())

    __int__ = __index__

    def _truth(self, kind: str, a: object, b: object) -> bool:
        """A comparison. Those of whole numbers compare a difference with 0."""
        if self._with_float(b if a is self else a):
            return super()._truth(kind, a, b)
        rest = self._sum(1, b, -1) if a is self else self._sum(-1, a, 1)
        if not isinstance(rest, _Size):
            return bool(rest == 0 if kind == "==" else rest < 0)
        if kind == "==" and rest.terms[0][1] < 0:
            rest = -rest
        outcome = rest.value == 0 if kind == "==" else rest.value < 0
        return self.trace.holds(kind, rest.terms, outcome)


def _sized(trace: SizeTrace, terms: dict[tuple[int, ...], int], value: int) -> _Number:
    """A sum, which is a number where no factor is left."""
    left = sorted((f, n) for f, n in terms.items() if n)
    if not left or (len(left) == 1 and not left[0][0]):
        return left[0][1] if left else 0
    if len(left) > MAX_TERMS:
        raise TooLarge(f"more than {MAX_TERMS} terms")
    return _Size(trace, tuple(left), value)


if TYPE_CHECKING:
    class Size(int):
        """A whole number that is an expression. It stands where an ``int`` may, so checkers of
        types take it for one."""

        trace: SizeTrace
        terms: Terms
        value: int
else:
    Size = _Size
