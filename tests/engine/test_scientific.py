"""Packages that know nothing of tensors take them: SciPy, pandas, Matplotlib and scikit-learn. Each
call gives what it gives for NumPy's arrays. IPython shows tensors, and completes their names.
Without these packages the tests are skipped."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import first_hour
import kompute_dml as dml

pytestmark = pytest.mark.values

_SCIPY = [
    lambda A: _module("scipy.linalg").svd(A)[1],
    lambda S: _module("scipy.linalg").cho_factor(S)[0],
    lambda S: _module("scipy.linalg").expm(S),
    lambda A: _module("scipy.stats").zscore(A),
    lambda A: tuple(_module("scipy.stats").ttest_ind(A[0], A[1])),
    lambda A: _module("scipy.stats").pearsonr(A[0], A[1])[0],
    lambda V: _module("scipy.signal").find_peaks(V)[0],
    lambda V: _module("scipy.signal").savgol_filter(V, 5, 2),
    lambda A: _module("scipy.signal").convolve2d(A, A),
    lambda A: _module("scipy.ndimage").gaussian_filter(A, 1.0),
    lambda A: _module("scipy.ndimage").label(A > 0)[0],
    lambda A: _module("scipy.special").softmax(A, axis=1),
    lambda A: _module("scipy.special").expit(np.asarray(A)),
    lambda V: _module("scipy.interpolate").CubicSpline(np.arange(6), V)(2.5),
    lambda V: _module("scipy.integrate").simpson(V),
    lambda A: _module("scipy.spatial").distance.pdist(A),
    lambda A: _module("scipy.sparse").csr_matrix(A).toarray(),
    lambda S, V: _module("scipy.optimize").minimize(
        lambda w: float(w @ np.asarray(S) @ w - V[:4] @ w), V[:4], tol=1e-12).x.round(3),
]
_PANDAS = [
    lambda A: _module("pandas").DataFrame(A).describe().to_numpy(),
    lambda A: _module("pandas").DataFrame({"a": A[0], "b": A[1]}).corr().to_numpy(),
    lambda V: _module("pandas").Series(V).rolling(2).mean().to_numpy(),
    lambda V: _module("pandas").Series(V).value_counts().to_numpy(),
    lambda A: _module("pandas").DataFrame(A, columns=list("abcde")).sum().to_numpy(),
    lambda V: _module("pandas").cut(V, 3).codes,
    lambda V: _module("pandas").Index(V).to_numpy(),
]
_MATPLOTLIB = [
    lambda A: _picture(lambda axes: axes.imshow(A)),
    lambda V: _picture(lambda axes: axes.plot(V)),
    lambda V: _picture(lambda axes: axes.plot(V, V**2, "o-")),
    lambda V: _picture(lambda axes: axes.hist(V, bins=4)),
    lambda V: _picture(lambda axes: axes.scatter(V, V, c=V, s=V * 10)),
    lambda V: _picture(lambda axes: axes.bar(V, V)),
    lambda V: _picture(lambda axes: axes.fill_between(V, V - 1, V + 1)),
    lambda A: _picture(lambda axes: axes.contourf(A)),
    lambda A: _picture(lambda axes: axes.boxplot(A)),
    lambda V: _picture(lambda axes: axes.errorbar(V, V, yerr=V / 4)),
]
_LEARN = [
    lambda A: _module("sklearn.preprocessing").StandardScaler().fit_transform(A),
    lambda A: abs(_module("sklearn.decomposition").PCA(2).fit_transform(A)),
    lambda A: _module("sklearn.linear_model").LinearRegression().fit(A, A[:, 0]).predict(A),
    lambda A: _module("sklearn.linear_model").LogisticRegression().fit(A, A[:, 0] > 0).predict(A),
    lambda A: _module("sklearn.cluster").KMeans(2, n_init=2, random_state=0).fit(A).labels_,
    lambda A: _module("sklearn.neighbors").NearestNeighbors(n_neighbors=2).fit(A).kneighbors(A)[1],
    lambda A: _module("sklearn.ensemble").RandomForestRegressor(
        5, random_state=0).fit(A, A[:, 0]).predict(A),
    lambda A: _module("sklearn.metrics").accuracy_score(A[0] > 0, A[1] > 0),
    lambda A: _module("sklearn.metrics").pairwise_distances(A),
    lambda A: _module("sklearn.model_selection").train_test_split(A, random_state=0)[1],
]


def _module(name: str) -> Any:
    pytest.importorskip(name.partition(".")[0])
    return importlib.import_module(name)


def _picture(draw: Callable[[Any], object]) -> np.ndarray:
    """The pixels of what is drawn."""
    canvas = _module("matplotlib.backends.backend_agg").FigureCanvasAgg(
        _module("matplotlib.figure").Figure(figsize=(2, 2)))
    draw(canvas.figure.add_subplot())
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _text(call: Callable[..., Any]) -> str:
    """The place of a call in this file, for its name in the report."""
    return str(inspect.getsourcelines(call)[1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [*_SCIPY, *_PANDAS, *_MATPLOTLIB, *_LEARN], ids=_text)
def test_a_call_takes_tensors(call: Callable[..., Any], device: dml.Device) -> None:
    arrays = {k: first_hour.arrays()[k] for k in inspect.signature(call).parameters}
    expected = call(**arrays)
    value = call(**{k: device.tensor(array) for k, array in arrays.items()})
    np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=2e-5, atol=2e-6)


def test_ipython_shows_and_completes(
    device: dml.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and HTML in a notebook, names after a dot, help after a question mark."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = _module("IPython.core.interactiveshell").InteractiveShell()
    x = device.tensor(np.float32([[1, 2], [3, 4]]))
    shell.push({"x": x, "dml": dml})
    data, _ = shell.display_formatter.format(x)
    assert data["text/plain"] == repr(x)
    assert data["text/html"] == f"<pre>{x!r}</pre>"
    with _module("IPython.core.completer").provisionalcompleter():
        for text, name in ("x.resh", "reshape"), ("dml.softm", "softmax"):
            found = shell.Completer.completions(text, len(text))
            assert name in [completion.text.lstrip(".") for completion in found]
    for shown in (device, device.adapter):
        data, _ = shell.display_formatter.format(shown)
        assert device.adapter.name in data["text/plain"]
    assert shell.object_inspect("dml.softmax")["found"]
    assert "axis" in shell.object_inspect("dml.softmax")["definition"]
    result = shell.run_cell("x.sum(axis=0) + 1")
    assert repr(result.result) == "tensor([5., 7.], dtype=float32)"
