"""The choice between kernels: how one is added, who declines, and what is told of it."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.cli import cli
from kompute_dml.lowering import copy, indexed, measured
from kompute_dml.lowering.builder import PlanBuilder
from kompute_dml.lowering.kernel import Kernel, choose, explained
from kompute_dml.lowering.planes import General, Images
from kompute_dml.operators import (
    attention_kernels,
    gather,
    gradients,
    join,
    movement,
    padding,
    pooling,
    pooling_gradient,
    reduce,
    resample,
    scan,
    scatter_reduce,
    sort,
)
from kompute_dml.operators.convolution import kernels as convolution
from kompute_dml.operators.matrix_multiply import blocked_weights, float_kernels
from kompute_dml.operators.matrix_multiply import kernels as integer_kernels
from kompute_dml.runtime.shader_library import shaders
from kompute_dml.runtime.traits import DeviceClass, DeviceTraits, class_of

_PACKAGE = Path(dml.__file__).parent
FAMILIES = {
    "attention": attention_kernels.KERNELS, "pooling": pooling.KERNELS,
    "gemm": float_kernels.KERNELS, "blocked weights": blocked_weights.KERNELS,
    "integer products": integer_kernels.KERNELS,
    "copy": copy.KERNELS, "gather": indexed.GATHER_KERNELS, "scatter": gather.SCATTER_KERNELS,
    "scatter_reduce": scatter_reduce.KERNELS, "join": join.KERNELS,
    "padding": padding.KERNELS, "tile": padding.TILE_KERNELS, "reduction": reduce.KERNELS,
    "scan": scan.KERNELS, "depth_space": movement.BLOCK_KERNELS,
    "reverse_subsequences": movement.SEQUENCE_KERNELS,
    "slice_grad": gradients.SLICE_KERNELS, "lrn_grad": gradients.RESPONSE_KERNELS,
    "pooling_grad": pooling_gradient.KERNELS, "resample": resample.KERNELS, "top_k": sort.KERNELS,
    **{f"convolution {ends}": kernels for ends, kernels in convolution.KERNELS.items()}}
each_family = pytest.mark.parametrize("family", FAMILIES)


@each_family
def test_what_a_kernel_declares_is_what_it_answers(family: str) -> None:
    """A method of the same class, or of one that it extends, would hide the declaration."""
    for kernel in FAMILIES[family]:
        for attribute, method in (("cost", "estimate"), ("constants_decide", "takes")):
            declares, computes = (next(c for c in type(kernel).__mro__ if name in c.__dict__)
                                  for name in (attribute, method))
            assert computes is Kernel or not issubclass(declares, computes), (
                kernel.name, attribute)


@dataclass(frozen=True)
class _Problem:
    work: str = "toy 1"


@dataclass(frozen=True)
class _Toy(Kernel[_Problem]):
    name: str
    time: float = 1.0
    reason: str | None = None
    variant: str = ""

    def serves(self, problem: _Problem, traits: DeviceTraits) -> str | None:
        return self.reason

    def shader(self, problem: _Problem) -> str:
        return self.variant

    def estimate(self, problem: _Problem, traits: DeviceTraits) -> float:
        return self.time


@pytest.fixture
def p(device: dml.Device) -> PlanBuilder:
    t = dml.TensorDesc("float32", [4])
    return PlanBuilder(device.target, dml.ActivationReluOperatorDesc(
        input_tensor=t, output_tensor=t))


def test_the_least_estimate_of_those_that_serve_is_taken(p: PlanBuilder) -> None:
    kernels = (_Toy("slow", 3), _Toy("fast", 2), _Toy("declines", 1, "it is a toy"),
               _Toy("as-fast", 2))
    with tuning.trial({}), explained() as choices:
        assert choose(kernels, _Problem(), p).name == "fast"
    (choice,) = choices
    assert choice.able == (("fast", 2), ("as-fast", 2), ("slow", 3))
    assert choice.declined == (("declines", "it is a toy"),)
    assert str(choice).splitlines()[0].endswith("RELU: fast (toy 1)")


def test_what_spills_on_a_class_comes_last_there(
    p: PlanBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = (_Toy("large", 1, variant="gemm.t64"), _Toy("small", 2, variant="gemm.t32"))
    monkeypatch.setattr(measured, "crowded", lambda kind: {
        DeviceClass.INTEL: {"gemm.t64"}, DeviceClass.MOBILE: {"gemm.t32", "gemm.t64"},
    }.get(kind, ()))
    for kind, taken in ((DeviceClass.INTEL, "small"), (DeviceClass.MOBILE, "large"),
                        (DeviceClass.AMD_RDNA, "large")):
        target = replace(p.target, traits=replace(p.device, device_class=kind))
        with tuning.trial({}):
            assert choose(kernels, _Problem(), PlanBuilder(target, p.desc)).name == taken


def test_an_operator_takes_the_first_variant_that_is_not_crowded(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "crowded", lambda kind: {
        DeviceClass.INTEL: {"p4"}, DeviceClass.MOBILE: {"p4", "p2"}}.get(kind, set()))
    assert measured.roomy(DeviceClass.AMD_RDNA, ["p4", "p2"]) == "p4"
    assert measured.roomy(DeviceClass.INTEL, ["p4", "p2"]) == "p2"
    assert measured.roomy(DeviceClass.MOBILE, ["p4", "p2"]) == "p2"  # there is no other one


def test_crowded_variants_are_kept_by_class(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    measured.keep_crowded(path, DeviceClass.INTEL, {"b", "a"})
    measured.keep(path, DeviceClass.INTEL, {"work": "kernel"})
    measured.keep_crowded(path, DeviceClass.INTEL, {"a"})
    assert json.loads(path.read_text()) == {
        "figures": {}, "choices": {"Intel": {"work": "kernel"}}, "crowded": {"Intel": ["a"]}}


def test_crowded_variants_are_there() -> None:
    """A renamed variant is no longer known to spill."""
    names = {name for variants in shaders().values() for name in variants}
    table = json.loads(measured.FILE.read_text("utf-8"))["crowded"]
    assert {name for variants in table.values() for name in variants} <= names
    assert set(table) <= {kind.value for kind in DeviceClass}


def test_what_was_measured_goes_before_estimates(p: PlanBuilder) -> None:
    kernels = (_Toy("slow", 3), _Toy("fast", 2), _Toy("declines", 1, "it is a toy"))
    for forced, taken in (("slow", "slow"), ("declines", "fast")):
        with tuning.trial({"toy 1": forced}):
            assert choose(kernels, _Problem(), p).name == taken


def test_shaders_that_the_device_does_not_have_decline(p: PlanBuilder) -> None:
    small = replace(p.target, traits=replace(p.device, max_shared_memory=16))
    p = PlanBuilder(small, p.desc)
    kernels = (_Toy("unknown", variant="no.shader"), _Toy("large", variant="gemm.t64"),
               _Toy("plain", 9))
    with tuning.trial({}), explained() as choices:
        choose(kernels, _Problem(), p)
    reasons = dict(choices[0].declined)
    assert "no shader variant no.shader" in reasons["unknown"]
    assert "bytes of shared memory, but the device has 16" in reasons["large"]


def test_errors_name_all_reasons(p: PlanBuilder) -> None:
    with pytest.raises(dml.UnsupportedError, match=r"RELU: .*a: one; b: two"):
        choose((_Toy("a", reason="one"), _Toy("b", reason="two")), _Problem(), p)


@each_family
def test_names_are_unique(family: str) -> None:
    """Kernels for other types of elements may share a name."""
    names = [(type(k), k.name) for k in FAMILIES[family]]
    assert len(names) == len(set(names)) > 1


def test_no_kernel_names_another() -> None:
    """Classes of kernels do not use those of others, but as a base."""
    for path in _PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        kernels = {n for n, c in classes.items() if any(
            isinstance(f, ast.FunctionDef) and f.name in ("serves", "estimate") for f in c.body)}
        for name in kernels:
            used = {n.id for f in classes[name].body if isinstance(f, ast.FunctionDef)
                    and f.name in ("serves", "estimate") for n in ast.walk(f)
                    if isinstance(n, ast.Name)}
            assert not used & (kernels - {name}), f"{path.name}: {name}"


def test_no_function_both_lowers_and_says_whether_it_did() -> None:
    """What cannot compute a problem declines by `serves`."""
    wrong, functions = [], 0
    for path in (*_PACKAGE.glob("operators/**/*.py"), *_PACKAGE.glob("lowering/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                functions += 1
                answers = node.returns is not None and ast.unparse(node.returns) == "bool"
                wrong += [f"{path.name}: {node.name}" for call in ast.walk(node) if answers
                          and isinstance(call, ast.Attribute) and call.attr in ("dispatch", "add")]
    assert wrong == [] and functions > 500


class _Whole(General):
    """A toy: the copy of a picture that keeps its size."""

    name = "whole"

    def serves(self, problem: Any, traits: DeviceTraits) -> str | None:
        same = problem.desc.input_tensor.sizes == problem.y.sizes
        return None if same and problem.y.data_type.itemsize == 4 else "sizes differ"

    def estimate(self, problem: Any, traits: DeviceTraits) -> float:
        return -1.0

    def lower(self, problem: Any, p: PlanBuilder) -> None:
        count = problem.y.element_count
        p.dispatch("activation_identity.b32", -(-count // 256), x=p.read("input_tensor"),
                   y=p.write("output_tensor"))


def test_a_kernel_is_a_class_and_an_entry(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is offered, taken, measured and explained without another line."""
    lines = len(inspect.getsource(_Whole).splitlines())
    assert lines <= 60
    monkeypatch.setattr(resample, "KERNELS", (*resample.KERNELS, _Whole()))
    t = dml.TensorDesc("float32", (1, 1, 4, 4))
    larger = dml.TensorDesc("float32", (1, 1, 8, 8))
    taken = {}
    for y in (t, larger):
        desc = dml.ResampleOperatorDesc(
            input_tensor=t, output_tensor=y,
            interpolation_mode=dml.InterpolationMode.LINEAR,
            scales=(1.0, 1.0, y.sizes[2] / 4, y.sizes[3] / 4))
        with tuning.trial({}) as trial, explained() as choices:
            problem = Images(desc, "resample", y)
            choose(resample.KERNELS, problem, PlanBuilder(own.target, desc))
        taken[y.sizes] = choices[0].taken
        offered = next(iter(trial.asked.values()))
        assert ("whole" in offered) == (y is t)
        assert ("whole", "sizes differ") in choices[0].declined or y is t
    assert taken[t.sizes] == "whole" != taken[larger.sizes]


def test_products_are_explained_by_rank(own: dml.Device) -> None:
    x = own.tensor(np.ones((3, 8), np.float32))
    with explained() as choices:
        dml.gemm(x, x, trans_b=1)
    (choice,) = choices
    assert choice.operator == "DML_OPERATOR_GEMM" and choice.taken == choice.able[0][0]
    ranks = [rank for _, rank in choice.able]
    assert ranks == sorted(ranks) and len(ranks) > 1 and choice.declined


@pytest.mark.parametrize("as_json", [False, True])
def test_cases_are_explained(as_json: bool) -> None:
    told = CliRunner().invoke(
        cli, ["explain", "--kernels", "max_pooling1", *["--json"] * as_json])
    assert told.exit_code == 0, told.output
    if as_json:
        (choice, *_) = json.loads(told.output)
        assert {"operator", "work", "declined", "able", "taken"} == set(choice)
    else:
        assert "MAX_POOLING1: " in told.output and "reduction declines: " in told.output
    wrong = CliRunner().invoke(cli, ["explain", "--kernels", "nothing like this"])
    assert wrong.exit_code == 2 and "no case of the benchmark" in wrong.output


def test_lowerings_tell_of_choices_where_that_is_asked_for(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_EXPLAIN", "1")
    dml.max_pooling(own.tensor(np.zeros((1, 1, 6, 6), np.float32)), window_size=(2, 2))
    assert "DML_OPERATOR_MAX_POOLING: " in capsys.readouterr().err


@pytest.mark.parametrize(("name", "driver", "kind"), [
    ("NVIDIA H200", "NVIDIA", DeviceClass.NVIDIA_HOPPER),
    ("NVIDIA GeForce RTX 4090", "NVIDIA", DeviceClass.NVIDIA),
    ("AMD Radeon RX 6800 (RADV NAVI21)", "radv", DeviceClass.AMD_RDNA),
    ("AMD Radeon RX 5700 XT", "AMD proprietary driver", DeviceClass.AMD_RDNA),
    ("AMD Radeon RX 580 (RADV POLARIS10)", "radv", DeviceClass.AMD_GCN),
    ("AMD Instinct MI210 (RADV ALDEBARAN)", "radv", DeviceClass.AMD_GCN),
    ("Intel(R) Arc(tm) A770 Graphics (DG2)", "Intel open-source Mesa driver", DeviceClass.INTEL),
    ("Adreno (TM) 740", "turnip Mesa driver", DeviceClass.MOBILE),
    ("Mali-G78", "Mali", DeviceClass.MALI), ("Something", "new", DeviceClass.UNKNOWN),
])
def test_devices_have_a_class(
    name: str, driver: str, kind: DeviceClass, device: dml.Device
) -> None:
    adapter = replace(device.adapter, name=name, driver=driver, type="discrete")
    assert class_of(adapter) is kind
    assert class_of(replace(adapter, type="cpu")) is DeviceClass.CPU


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A copy of the table, which may be changed."""
    made: dict[str, Any] = json.loads(measured.FILE.read_text("utf-8"))
    for read in (measured.figures, measured.choices):
        read.cache_clear()
    monkeypatch.setattr(measured, "_table", lambda: made)
    yield made
    for read in (measured.figures, measured.choices):
        read.cache_clear()


def test_figures_are_of_shaders_and_serve_all_classes(table: dict[str, Any]) -> None:
    variants = {v for names in shaders().values() for v in names}
    for kind, figures in table["figures"].items():
        assert DeviceClass(kind)
        assert {v for v in figures if v not in variants and v not in shaders()} == set()
    known = table["figures"]["NVIDIA Hopper"]
    table["figures"]["Intel"] = {"gemm.t64": {"step": 1.0, "alone": 2.0, "together": 3}}
    for kind in DeviceClass:
        own = kind is DeviceClass.INTEL
        assert (measured.figures(kind, "gemm.t64") == known["gemm.t64"]) != own
        assert measured.figures(kind, "gemm.t32") == known["gemm.t32"]


@pytest.mark.parametrize(("kind", "own"), [
    (DeviceClass.NVIDIA_HOPPER, "NVIDIA Hopper"), (DeviceClass.INTEL, "Intel"),
    (DeviceClass.MALI, "unknown")])
def test_a_figure_that_a_class_does_not_have_is_that_of_unknown_gpus(
    table: dict[str, Any], kind: DeviceClass, own: str
) -> None:
    for name in ("NVIDIA Hopper", "Intel", "unknown"):
        table["figures"].setdefault(name, {})["gemm.t64"] = {"step": len(name)}
    table["figures"]["NVIDIA Hopper"]["gemm.t64"]["alone"] = 0.5
    assert measured.figures(kind, "gemm.t64") == {"step": len(own), "alone": 0.5}
    with pytest.raises(KeyError, match="unheard of"):
        measured.figures(kind, "unheard of")


def test_choices_of_a_class_go_before_estimates(p: PlanBuilder, table: dict[str, Any]) -> None:
    kernels = (_Toy("slow", 3), _Toy("fast", 2))
    table["choices"][p.device.device_class.value] = {"toy 1": "slow", "toy 2": "unheard of"}
    assert choose(kernels, _Problem(), p).name == "slow"
    assert choose(kernels, _Problem("toy 2"), p).name == "fast"
    with tuning.trial({"toy 1": "fast"}):  # what this device was measured for
        assert choose(kernels, _Problem(), p).name == "fast"


def test_tuning_adds_choices_to_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    measured.keep(path, DeviceClass.INTEL, {"a": "x"})
    measured.keep(path, DeviceClass.INTEL, {"b": "y"})
    measured.keep(path, DeviceClass.MOBILE, {"a": "z"})
    assert json.loads(path.read_text()) == {
        "figures": {}, "crowded": {},
        "choices": {"Intel": {"a": "x", "b": "y"}, "mobile": {"a": "z"}}}
    wrong = CliRunner().invoke(cli, ["tune", "--seconds", "0", "--table", str(path), "--json"])
    assert wrong.exit_code == 0, wrong.output
    assert json.loads(path.read_text())["choices"]["mobile"] == {"a": "z"}
