"""Random numbers of ONNX models: they go on from run to run, and Multinomial draws as often as the
probabilities say."""

from __future__ import annotations

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.cases.random import philox  # noqa: E402
from kompute_dml.onnxruntime import capture  # noqa: E402
from onnx_graphs import FLOAT, INT64, RELEASE, model, needs_provider, node  # noqa: E402
from provider_tools import session  # noqa: E402

pytestmark = needs_provider
_SEED, _FLOAT16, _INT32 = 3.0, 10, 6


def _words(blocks: int, count: int) -> np.ndarray:
    """The words after so many blocks of four, with the seed's bits as a key."""
    key = int(np.float32(_SEED).view(np.uint32))
    return philox(np.array([blocks, 0, 0, 0, key, 0], np.uint32), count)


def _uniform(*sizes: int | str, copies: int = 1) -> bytes:
    """``copies`` of RandomUniformLike with a seed."""
    return model(
        [node("RandomUniformLike", "x", f"y{i}", seed=_SEED) for i in range(copies)],
        [("x", FLOAT, sizes)], [(f"y{i}", FLOAT, sizes) for i in range(copies)])


def _multinomial(samples: int, kind: int = FLOAT, to: int = _INT32) -> bytes:
    return model(
        [node("Multinomial", "x", "y", sample_size=samples, seed=_SEED, dtype=to)],
        [("x", kind, ["n", "c"])], [("y", to, ["n", samples])])


def _drawn(x: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The classes that words draw, in float64."""
    shares = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    sums = shares.cumsum(1)
    parts = (words >> np.uint32(9)).reshape(len(x), -1) * 2.0**-23 * sums[:, -1:]
    return np.stack([np.searchsorted(of, part, "right") for of, part in zip(sums, parts)])


def test_runs_go_on_whatever_their_sizes() -> None:
    """Also where the plan for a size comes again, and where one serves many sizes."""
    ours, blocks = session(_uniform("n"), False, claim="all", strict=True), 0
    for count in (8, 3, 8, 20, 21, 22, 8):
        (y,) = ours.run(None, {"x": np.zeros(count, np.float32)})
        wanted = (_words(blocks, count) >> np.uint32(8)) * np.float32(2.0**-24)
        np.testing.assert_array_equal(y, wanted)
        blocks += -(-count // 4)


def test_nodes_alike_go_on_apart() -> None:
    """Layers of a model share plans, and equal operators are computed once: not these."""
    ours = session(_uniform(6, copies=20), False, claim="all", strict=True)
    feed = {"x": np.zeros(6, np.float32)}
    for blocks in (0, 2):
        wanted = (_words(blocks, 6) >> np.uint32(8)) * np.float32(2.0**-24)
        for y in ours.run(None, feed):
            np.testing.assert_array_equal(y, wanted)


def test_layers_with_random_nodes_go_on_apart() -> None:
    nodes, last = [], "x"
    for i in range(4):
        nodes += [node("RandomUniformLike", last, f"{i}.r", seed=_SEED)]
        for j in range(8):
            nodes.append(node("Neg", last, f"{i}.{j}"))
            last = f"{i}.{j}"
        nodes.append(node("Add", f"{i}.r {last}", f"{i}.y"))
        last = f"{i}.y"
    ours = session(model(nodes, [("x", FLOAT, [8])], [("3.y", FLOAT, [8])]), False, claim="all",
                   strict=True)
    for blocks in (0, 2):
        (y,) = ours.run(None, {"x": np.zeros(8, np.float32)})
        each = (_words(blocks, 8) >> np.uint32(8)) * np.float32(2.0**-24)
        np.testing.assert_allclose(y, 4 * each, rtol=1e-6)


def test_sessions_begin_anew() -> None:
    feed = {"x": np.zeros(12, np.float32)}
    first, second = (session(_uniform(12), False, claim="all").run(None, feed)[0] for _ in "ab")
    np.testing.assert_array_equal(first, second)


def test_without_a_seed_sessions_differ() -> None:
    built = model([node("RandomNormalLike", "x", "y")], [("x", FLOAT, [12])], [("y", FLOAT, [12])])
    feed = {"x": np.zeros(12, np.float32)}
    ours = [session(built, False, claim="all", strict=True) for _ in range(2)]
    runs = [s.run(None, feed)[0] for s in (*ours, ours[0])]
    assert len({run.tobytes() for run in runs}) == 3


@pytest.mark.skipif(RELEASE < [1, capture.SINCE],
                    reason="this ONNX Runtime captures no graphs of providers")
def test_captured_runs_go_on() -> None:
    info = kompute.devices()[0].memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    ours = session(_uniform(8), False, claim="all", enable_graph_capture=True)
    x, y = (ort.OrtValue.ortvalue_from_shape_and_type([8], np.float32, memory_info=info)
            for _ in range(2))
    x.update_inplace(np.zeros(8, np.float32))
    binding = ours.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y0", y)
    for run in range(4):
        ours.run_with_iobinding(binding)
        wanted = (_words(2 * run, 8) >> np.uint32(8)) * np.float32(2.0**-24)
        np.testing.assert_array_equal(y.numpy(), wanted)


@pytest.mark.parametrize(("kind", "to"), [(FLOAT, _INT32), (FLOAT, INT64), (_FLOAT16, _INT32)])
def test_multinomial_draws_what_the_words_say(
    kind: int, to: int, rng: np.random.Generator
) -> None:
    """Sums are rounded, so that one of very many samples may be a neighbour of what is wanted."""
    ours, blocks = session(_multinomial(300, kind, to), False, claim="all", strict=True), 0
    for batches, classes in ((3, 40), (1, 40), (2, 1000), (1, 1)):
        x = rng.standard_normal((batches, classes), np.float32)
        x = x.astype(np.float16 if kind == _FLOAT16 else np.float32)
        (y,) = ours.run(None, {"x": x})
        wanted = _drawn(x, _words(blocks, batches * 300))
        assert y.dtype == (np.int64 if to == INT64 else np.int32) and y.shape == wanted.shape
        assert (y != wanted).mean() <= 0.005 and abs(y - wanted).max() <= 1
        blocks += -(-batches * 300 // 4)


def test_multinomial_draws_as_often_as_probabilities_say() -> None:
    """Pearson's statistic of 60,000 samples, within 6 deviations of its mean. What is impossible is
    never drawn."""
    shares = np.array([[0.2, 0.0, 0.05, 0.3, 0.0, 0.25, 0.01, 0.19, 0.0]], np.float32)
    with np.errstate(divide="ignore"):
        x = np.log(shares)
    ours = session(_multinomial(20_000), False, claim="all", strict=True)
    drawn = np.concatenate([ours.run(None, {"x": x + 7})[0].reshape(-1) for _ in range(3)])
    counts = np.bincount(drawn, minlength=9)
    possible = shares[0] > 0
    assert not counts[~possible].any()
    wanted = shares[0, possible] * drawn.size
    freedom = possible.sum() - 1
    statistic = ((counts[possible] - wanted) ** 2 / wanted).sum()
    assert abs(statistic - freedom) < 6 * (2 * freedom) ** 0.5
    pairs = np.bincount(drawn[:-1] * 9 + drawn[1:], minlength=81).reshape(9, 9)
    each = np.outer(counts, counts) / drawn.size
    many = each > 20
    assert abs((pairs - each)[many] / each[many] ** 0.5).max() < 6  # one says nothing of the next


def test_a_token_is_drawn_as_by_other_draws_of_a_session() -> None:
    """A loop of single samples, as a decoder makes them."""
    ours = session(_multinomial(1), False, claim="all", strict=True)
    x = np.zeros((1, 16), np.float32)
    drawn = [int(ours.run(None, {"x": x})[0][0, 0]) for _ in range(64)]
    assert drawn == [int(_drawn(x, _words(i, 1))[0, 0]) for i in range(64)]
    assert len(set(drawn)) > 10


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_multinomial_of_hostile_numbers_draws_a_class(value: float) -> None:
    ours = session(_multinomial(50), False, claim="all", strict=True)
    for places in (slice(None), slice(0, 1), slice(3, 5), slice(16, 17)):
        x = np.zeros((2, 17), np.float32)
        x[:, places] = value
        (y,) = ours.run(None, {"x": x})
        assert y.min() >= 0 and y.max() < 17
        if value < 0 and places != slice(None):
            assert not np.isin(y, np.arange(17)[places]).any()
