"""The benchmark: rows, kept runs, the command and the plot."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml.bench import architectures, baseline, cases, formats, plot, rows
from kompute_dml.bench.case import AS_MANY_BYTES, SCALES, Case, Recipe
from kompute_dml.bench.peers import PeerTime
from kompute_dml.bench.timing import Clock, Loop, Timings
from kompute_dml.cli import cli
from kompute_dml.cli.bench import _command as command_of

MODELS = Path(__file__).parents[1] / "models"
BASELINES = Path(__file__).parents[2] / "benchmarks" / "baseline"
FIGURES = {"gpu_ms", "spread", "host_ms", "bytes", "operations", "gb_per_s", "tops",
           "share_of_copy"}


def bench(*arguments: object):
    return CliRunner().invoke(
        cli, ["bench", "--scale", "tiny", "-i", "2", *map(str, arguments)]
    )


# -- rows


def timed(gpu_ms, size=2_000_000, operations=0, **fields):
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", size, operations, **fields)
    return rows.make_row(case, "ok", Timings(Clock((9.0, 5.0), 1), Clock((9.0, gpu_ms), 1)))


def test_figures_of_a_row():
    row = timed(2.0, operations=4_000_000)
    assert (row.gpu_ms, row.host_ms) == (2.0, 5.0)
    assert row.gb_per_s == pytest.approx(1.0)
    assert row.tops == pytest.approx(0.002)
    assert row.with_copy(4.0).share_of_copy == pytest.approx(0.25)
    assert formats.rate(row) == "2 GOPS"


def test_figures_are_those_of_one_dispatch():
    row = timed(2.0, dispatches=10)
    assert (row.gpu_ms, row.host_ms) == (0.2, 0.5)
    assert row.gb_per_s == pytest.approx(10.0)


def test_figures_are_medians_of_the_hot_samples():
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 3_000_000)
    host, gpu = Clock((99.0, 4.0, 5.0, 90.0), 1), Clock((99.0, 2.0, 3.0, 70.0), 1)
    row = rows.make_row(case, "ok", Timings(host, gpu))
    assert (row.gpu_ms, row.host_ms, row.ms) == (3.0, 5.0, 3.0)
    assert row.gb_per_s == pytest.approx(1.0) and row.spread == gpu.hot.spread
    row = rows.make_row(case, "ok", Timings(host, None))
    assert (row.gpu_ms, row.host_ms, row.ms) == (None, 5.0, 5.0)
    assert row.gb_per_s == pytest.approx(0.6) and row.spread == host.hot.spread


@pytest.mark.parametrize(("ms", "loop"), [(0.1, Loop(21, 20)), (20.0, Loop(4, 1))])
def test_samples_follow_from_the_speed(monkeypatch, ms, loop):
    loops = []

    def measure(device, dispatch, loop, *, on_host):
        loops.append(loop)
        return Timings(Clock((50.0,), 0), Clock((ms,), 0))

    monkeypatch.setattr(rows, "measure", measure)
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 1)
    assert rows.run_case(None, case).gpu_ms == ms
    assert loops == [Loop(3), loop]


@pytest.mark.parametrize(("figures", "text"), [
    (dict(tops=0.1), "0.1 TOPS"), (dict(tops=0.0999), "99.9 GOPS"),
    (dict(gb_per_s=999.0), "999 GB/s"), (dict(gb_per_s=2000.0), "2.00 TB/s"), ({}, "-"),
])
def test_rates_have_their_units(figures, text):
    assert formats.rate(rows.BenchRow("X", "f32", "[1]", "ok", **figures)) == text


def test_what_a_table_says():
    row = rows.BenchRow(
        "DML_OPERATOR_X", "f32", "[1]", "ok", gpu_ms=0.25, spread=0.034, host_ms=1.5,
        bytes=2_500_000, gb_per_s=10.0, share_of_copy=0.5, peers={"torch": PeerTime(1.0)},
        goals=(rows.Judged("copy", 0.6, 0.5), rows.Judged("torch", 1.0, 4.0),
               rows.Judged("eye", 1.0, None)),
    )
    wrong = rows.BenchRow("DML_OPERATOR_Y", "f32", "[1]", "off by 1", bytes=2_000_000_000)
    *_, first, second = formats.as_table([row, wrong]).splitlines()
    assert re.split("  +", first) == [
        "X", "f32", "[1]", "250.0 us", "+-3%", "1.500 ms", "2.5 MB", "10 GB/s", "50%",
        "torch 4.00x", "copy 0.50/0.6 MISSED, torch 4.00/1 met, eye -/1 ?", "ok",
    ]
    assert re.split("  +", second) == ["Y", "f32", "[1]", *"---", "2.0 GB", *"--", "WRONG"]
    assert formats.summary([row, wrong]) == ["1 of 2 goals are met."]
    (line,) = formats.summary([rows.dataclasses.replace(row, gpu_ms=None, goals=())])
    assert line.startswith("No device timestamps here")


def with_peers(row, **times):
    return rows.dataclasses.replace(row, peers={n: PeerTime(ms) for n, ms in times.items()})


def test_goals_are_judged():
    row = with_peers(timed(2.0, operations=10**10).with_copy(2.0), torch=3.0, eye=None)
    other = Recipe("X", "other", lambda *_: ())
    absent = Recipe("X", "absent", lambda *_: ())
    held = other.held_to(("copy", 0.5), ("torch", 1.6), ("eye", 1.0), ("TOPS", 10.0),
                         ("us", 4000.0), (other, 0.9), (absent, 1.0), (AS_MANY_BYTES, 0.8),
                         ("host us", 1000.0))
    goals = row.judged(held, {other: timed(2.0, operations=2 * 10**10)},
                       {row.bytes: row.gb_per_s / 0.75}).goals
    by_host = 1.0 / row.host_ms
    assert [g.ratio for g in goals] == [0.5, 1.5, None, 0.5, 2.0, 0.5, None, 0.75, by_host]
    assert [g.met for g in goals] == [
        True, False, None, False, True, False, None, False, by_host >= 1]
    assert goals[4].against == "4000 us" and goals[6].against == "absent"


def test_copying_is_as_fast_as_the_faster_of_both():
    assert rows.copy_bandwidth(timed(2.0)) == pytest.approx(1.0)
    assert rows.copy_bandwidth(with_peers(timed(2.0), torch=1.0)) == pytest.approx(2.0)
    assert rows.copy_bandwidth(with_peers(timed(2.0), torch=4.0)) == pytest.approx(1.0)


# -- stored runs


def kept(*figures):
    records = [
        {"operator": "DML_OPERATOR_X", "types": "f32", "sizes": f"[{i}]", "gpu_ms": ms,
         "host_ms": 9.0, "spread": 0.05}
        for i, ms in enumerate(figures)
    ]
    return {"rows": records, "date": "2024-02-29"}


def test_what_moved(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps(kept(1.0, 1.0, 1.0, 1.0)))
    old = baseline.load(path)
    moved = baseline.against(kept(1.05, 0.5, 2.0, None)["rows"], old)
    assert [(c["case"][-3:], c["speed"], c["moved"]) for c in moved] == [
        ("[0]", pytest.approx(0.952, abs=1e-3), False), ("[1]", 2.0, True), ("[2]", 0.5, True),
        ("[3]", pytest.approx(1.0), False),
    ]
    table = baseline.against_table(kept(1.05, 0.5, 2.0)["rows"], old)
    assert [line.split()[-1] for line in table.splitlines()[2:]] == ["spread", "faster", "SLOWER"]


@pytest.mark.parametrize(("before", "now", "ms", "moved"), [
    (0.0, 0.0, 1.009, False), (0.0, 0.0, 1.011, True), (0.0, 0.0, 0.989, True),
    (0.05, 0.0, 1.04, False), (0.0, 0.05, 1.04, False), (0.03, 0.03, 1.05, False),
    (0.03, 0.03, 1.07, True),
])
def test_what_differs_by_more_than_both_spreads_moved(before, now, ms, moved):
    old, new = kept(1.0), kept(ms)
    old["rows"][0]["spread"], new["rows"][0]["spread"] = before, now
    old["by_key"] = {("DML_OPERATOR_X", "f32", "[0]"): old["rows"][0]}
    assert [case["moved"] for case in baseline.against(new["rows"], old)] == [moved]
    table = baseline.against_table(new["rows"], old)
    assert re.search(f"1000.0 us +{ms * 1e3:.1f} us +{1 / ms:.3f} ", table)


@pytest.mark.parametrize("stem, suite", [
    ("nvidia-h200", "limits"), ("nvidia-h200-elementwise", "elementwise"),
    ("nvidia-h200-families", "families"), ("nvidia-h100", "limits")])
def test_baselines_were_held_to_the_goals_of_their_suites(stem, suite):
    run = baseline.load(BASELINES / f"{stem}.json")
    recipes = iter(cases.SUITES[suite])  # newer cases may stand between those that were measured

    def held_to(row: dict, recipe: Recipe) -> bool:
        asked = rows.BenchRow("X", "f32", "[1]", "ok").judged(recipe, {}).goals
        told = [(g["against"], g["goal"]) for g in row["goals"]]
        # A goal against another case names that case with its sizes.
        return ((row["operator"], row["types"]) == (recipe.operator, recipe.types)
                and [goal for _, goal in told] == [g.goal for g in asked]
                and all(g.against in against for g, (against, _) in zip(asked, told)))

    for row in run["rows"]:
        assert any(held_to(row, recipe) for recipe in recipes), f"{row['operator']} {row['types']}"


def test_what_a_goal_names_is_measured_where_a_filter_leaves_it_out():
    result = bench("--suite", "movement", "--filter", "f16 step 2", "--format", "json")
    (row,) = json.loads(result.stdout)["rows"]
    (copy, _) = row["goals"]
    assert copy["against"] == AS_MANY_BYTES and copy["ratio"] > 0


def test_what_a_table_shows_first_was_measured():
    run = baseline.load(BASELINES / "nvidia-h200.json")
    assert set(baseline.SHOWN) <= {baseline.name(row) for row in run["rows"]}


def test_kept_models_are_those_of_the_suite():
    names = {architecture.name for architecture in architectures.ARCHITECTURES}
    run = baseline.load(BASELINES / "nvidia-h200-models.json")
    assert {row["model"] for row in run["models"]} <= names


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "bad.json").write_text('{"rows": 1}')
    for name in ("bad.json", "none.json"):
        with pytest.raises(dml.ValidationError, match=name):
            baseline.load(tmp_path / name)


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


@pytest.mark.parametrize(("options", "loop"), [
    ("", None), ("-r 4", Loop(11, 4)), ("-i 3 -r 4 -t 50 -w 2", Loop(3, 4, 50.0, 2))])
def test_what_is_asked_for_is_how_it_is_timed(monkeypatch, options, loop):
    asked = []

    def run_recipe(device, recipe, loop, scale, libraries):
        asked.append((loop, scale))
        # PyTorch copies twice as fast.
        yield with_peers(timed(2.0 if recipe is cases.COPY else 4.0), torch=1.0)

    monkeypatch.setattr(rows, "run_recipe", run_recipe)
    monkeypatch.setattr(rows, "suitable_scale", lambda device, copy: SCALES["middle"])
    result = CliRunner().invoke(cli, [
        "bench", "--filter", "diagonal_matrix u8", "--format", "json", *options.split()])
    assert result.exit_code == 0, result.output
    assert asked == [(loop, SCALES["middle"])] * 2
    run = json.loads(result.stdout)
    assert run["copy_gb_per_s"] == pytest.approx(2.0)
    assert [row["share_of_copy"] for row in run["rows"]] == pytest.approx([0.25])


def test_verbosity_goes_to_stderr():
    result = bench("--filter", "diagonal_matrix u8", "-v", 1)
    assert result.exit_code == 0
    assert "CPU Timings" not in result.stdout


def test_wrong_values_end_with_1(monkeypatch):
    def make(device, scale):
        yield Case("DML_OPERATOR_GEMM", "f32", "[1]", lambda: None, lambda _: "off by 1", 4)

    monkeypatch.setitem(
        cases.SUITES, "operators", (cases.COPY, Recipe("DML_OPERATOR_GEMM", "f32", make)))
    result = bench()
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert result.stderr.strip() == "error: GEMM f32 [1]: off by 1"


def test_peers_and_goals_are_printed():
    result = bench("--suite", "numpy", "--filter", "element_wise_abs")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "faster than" in lines[1] and "reached/goal" in lines[1]
    (row,) = [line for line in lines if line.startswith("ELEMENT_WISE_ABS")]
    assert "numpy " in row and "/0.1 " in row
    assert any(line.endswith(" of 1 goals are met.") for line in lines)


def test_a_run_is_kept_and_compared(tmp_path):
    path = tmp_path / "runs" / "run.json"
    assert bench("--filter", "diagonal_matrix u8", "--output", path).exit_code == 0
    run = json.loads(path.read_text())
    assert run["command"].startswith("kompute-dml")
    assert {"driver", "date", "version", "copy_gb_per_s"} <= run.keys()
    for row in run["rows"]:
        row.update(gpu_ms=row["gpu_ms"] and row["gpu_ms"] * 1000, host_ms=row["host_ms"] * 1000)
    path.write_text(json.dumps(run))
    result = bench("--filter", "diagonal_matrix u8", "--against", path)
    assert result.exit_code == 0, result.output
    assert f"{run['date']}" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("faster")
    assert "another device" not in result.stdout
    result = bench("--filter", "diagonal_matrix u8", "--against", path, "--json")
    (moved,) = json.loads(result.stdout)["against"]
    assert moved["case"].startswith("DIAGONAL_MATRIX u8 ") and moved["speed"] > 1
    path.write_text(json.dumps({**run, "device": "Maker RTX 4090"}))
    result = bench("--filter", "diagonal_matrix u8", "--against", path)
    assert f"{path} is a run on another device, 'Maker RTX 4090'" in result.stdout


def test_the_command_of_a_run_names_no_file_of_its_machine():
    arguments = ["bench", "--peers", "--output", "/a/b.json", "--suite", "limits"]
    assert command_of(arguments) == "kompute-dml bench --peers --suite limits"
    assert command_of(["bench", "--output=/a/b.json"]) == "kompute-dml bench"


def _circles(svg: str) -> list[str]:
    return re.findall(r'<circle class="c(\d)" cx="([\d.]+)" cy="([\d.]+)" r="4"/>', svg)


def test_plot(tmp_path):
    picture = tmp_path / "run.svg"
    result = bench("--filter", "diagonal_matrix u8", "--plot", picture)
    assert result.exit_code == 0, result.output
    root = ElementTree.fromstring(picture.read_text())
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Bandwidth: GB/s" in texts and "diagonal_matrix u8" in texts


def test_a_kept_run_is_drawn_and_nothing_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(dml, "Device", None)
    picture = tmp_path / "kept.svg"
    kept = ["--kept", BASELINES / "nvidia-h200.json"]
    assert bench(*kept, "--kept", BASELINES / "nvidia-h200-models.json", "--plot",
                 picture).exit_code == 0
    assert picture.read_text() == (
        Path(__file__).parents[2] / "docs/performance/nvidia-h200.svg").read_text()
    assert "expected --plot" in bench(*kept).output
    assert "at most one run" in bench(*kept, *kept, "--plot", picture).output


def test_the_roofline_is_to_scale():
    """A row at the copy bandwidth lies on the line; ten times the rate is as high everywhere."""
    def row(intensity, tops, types="a"):
        return {"operator": "X", "types": types, "sizes": "", "gb_per_s": 1.0, "tops": tops,
                "operations": int(intensity * 1000), "bytes": 1000}
    rows = [row(1, 1.0), row(10, 10.0), row(100, 10.0), row(100, 100.0), row(100, 5.0, "<b>")]
    run = {"device": "D & E", "driver": "", "date": "", "copy_gb_per_s": 1000.0, "rows": rows}
    svg = plot.picture(run)
    assert "D &amp; E" in svg and "&lt;b>" in svg
    *dots, other = [(int(c), float(x), float(y)) for c, x, y in _circles(svg)[2:]]
    assert [dot[0] for dot in dots] == [0] * 4 and other[0] == 1
    (_, x0, y0), (_, x1, y1), (_, x2, y2), (_, _, y3) = dots
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y1 == y2
    assert y0 - y1 == pytest.approx(y1 - y3, abs=0.2) and y0 > y1
    (start_x, start_y, end_x, end_y), = re.findall(
        r'class="roof" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)
    along = (x0 - float(start_x)) / (float(end_x) - float(start_x))
    assert float(start_y) + along * (float(end_y) - float(start_y)) == pytest.approx(y0, abs=0.3)
