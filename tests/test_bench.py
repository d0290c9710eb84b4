"""The benchmark: statistics, cases, rows and the picture."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml.bench import cases, rows
from kompute_dml.bench.timing import Clock, Loop, Stats, Timings, measure, report
from kompute_dml.cli import cli
from kompute_dml.operators.base import definitions

MODELS = Path(__file__).parent / "models"
FIGURES = {"gpu_ms", "spread", "host_ms", "bytes", "operations", "gb_per_s", "tops",
           "share_of_copy"}


def bench(*arguments: object):
    return CliRunner().invoke(
        cli, ["bench", "--scale", "tiny", "-i", "2", *map(str, arguments)]
    )


# -- clocks


def test_statistics():
    stats = Stats.of([4.0, 1.0, 2.0, 3.0])
    assert (stats.count, stats.average, stats.minimum, stats.median, stats.maximum) == \
        (4, 2.5, 1.0, 2.5, 4.0)
    assert stats.spread == pytest.approx(0.5)
    assert Stats.of([3.0]).spread == 0


@pytest.mark.parametrize(
    ("samples", "warmup", "cold"), [(1, 2, 0), (2, 2, 1), (3, 2, 2), (5, 2, 2), (5, 0, 0)]
)
def test_one_sample_is_always_hot(device, samples, warmup, cold):
    timings = measure(device, lambda: None, Loop(samples, warmup=warmup))
    assert timings.cpu.cold_count == cold
    assert timings.cpu.hot.count == samples - cold


def test_repeats_are_divided_out():
    class Slow:
        calls = 0

        def synchronize(self):
            pass

        def time(self, work):
            self.calls = 0
            work()
            return [("shader", 2e6)] * self.calls

        def dispatch(self):
            self.calls += 1

    fake = Slow()
    timings = measure(fake, fake.dispatch, Loop(iterations=3, repeat=5))
    assert timings.gpu.samples == (2.0, 2.0, 2.0)


def test_without_device_timestamps():
    class Blind:
        def synchronize(self):
            pass

        def time(self, work):
            raise dml.UnsupportedError("no timestamps")

    timings = measure(Blind(), lambda: None, Loop(iterations=2))
    assert timings.gpu is None
    assert report("x", timings, 0)[0].endswith(" ms median (CPU)")


def test_printed_line_is_that_of_dxdispatch():
    timings = Timings(Clock((0.5491,), 0), Clock((0.0061,), 0))
    assert report("sum", timings, 0) == [
        "Dispatch 'sum': 1 iterations, 0.5491 ms median (CPU), 0.0061 ms median (GPU)"
    ]


# -- cases


def test_every_operator_has_a_case():
    assert {recipe.operator for recipe in cases.RECIPES} == definitions().keys()


@pytest.mark.parametrize("recipe", cases.RECIPES, ids=lambda r: f"{r.operator[13:]} {r.types}")
def test_cases_compute_what_numpy_does(device, recipe):
    for case in recipe.make(device, cases.TINY):
        case.dispatch()
        assert case.check() == ""
        assert case.bytes > 0


def test_a_wrong_value_is_found_and_not_timed(device):
    host = np.zeros(4, np.float32)
    case = cases.Case("X", "f32", "[4]", lambda: None,
                      lambda: cases._same_bits(np.float32([0, 1, 0, 0]), host), 4)
    row = rows.run_case(device, case, Loop())
    assert not row.ok and row.gpu_ms is None
    assert row.values.startswith("1 of 4 elements differ, the first at [1]: expected 0.0")


def test_zeros_of_different_sign_are_different():
    assert cases._same_bits(np.float32([-0.0]), np.float32([0.0]))


def test_bytes_count_what_a_stride_repeats_once():
    broadcast = dml.TensorDesc("float16", (4, 8), (0, 1))
    assert cases.touched_bytes((broadcast, dml.TensorDesc("int64", (3,)))) == 16 + 24


def test_figures_of_a_row():
    case = cases.Case("X", "f32", "[1]", lambda: None, lambda: "", 2_000_000, 4_000_000)
    row = rows.make_row(case, "ok", Timings(Clock((9.0, 5.0), 1), Clock((9.0, 2.0), 1)))
    assert (row.gpu_ms, row.host_ms) == (2.0, 5.0)
    assert row.gb_per_s == pytest.approx(1.0)
    assert row.tops == pytest.approx(0.002)
    assert row.with_copy(4.0).share_of_copy == pytest.approx(0.25)
    assert rows.rate(row) == "2 GOPS"


# -- the command


def test_table_has_the_rows_asked_for():
    result = bench("--filter", "diagonal_matrix1 ".strip())
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Running on '")
    assert len([line for line in lines if line.startswith("DIAGONAL_MATRIX1")]) == 3
    assert not any(line.startswith("ACTIVATION") for line in lines)


def test_csv_and_json_have_the_same_figures():
    table = list(csv.DictReader(io.StringIO(bench("--format", "csv", "--filter", "f16").stdout)))
    document = json.loads(bench("--format", "json", "--filter", "f16").stdout)
    assert document["device"]
    assert FIGURES <= table[0].keys() == document["rows"][0].keys()
    assert [r["types"] for r in table] == [r["types"] for r in document["rows"]]
    assert all(r["values"] == "ok" and r["host_ms"] > 0 for r in document["rows"])


def test_model_rows_are_measured_unchecked():
    result = bench(MODELS / "matrix_multiply_integer_to_float.json", "--format", "json")
    assert result.exit_code == 0, result.output
    copy, product = json.loads(result.stdout)["rows"]
    assert copy["share_of_copy"] == pytest.approx(1)
    assert product["values"] == "unchecked"
    assert product["operations"] == 2 * 2 * 3 * 2
    assert product["bytes"] == 6 + 8 + 6 + 4 + 2 + 8 + 16


def test_verbosity_goes_to_stderr():
    result = bench("--filter", "diagonal_matrix u8", "-v", 1)
    assert result.exit_code == 0
    assert "CPU Timings" not in result.stdout


def test_wrong_values_end_with_1(monkeypatch):
    def make(device, scale):
        yield cases.Case("DML_OPERATOR_GEMM", "f32", "[1]", lambda: None, lambda: "off by 1", 4)

    monkeypatch.setattr(cases, "RECIPES", (cases.Recipe("DML_OPERATOR_GEMM", "f32", make),))
    result = bench()
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert result.stderr.strip() == "error: DML_OPERATOR_GEMM f32 [1]: off by 1"


@pytest.mark.slow
def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "roofline.png"
    result = bench("--filter", "f32", "--plot", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 10_000


def test_scales_cover_every_kind_of_device():
    from kompute_dml.runtime.adapters import DEVICE_TYPES

    assert cases.SCALES.keys() == set(DEVICE_TYPES)
    assert all(math.prod(p) for s in cases.SCALES.values() for p in s.products)
