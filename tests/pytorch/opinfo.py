"""PyTorch's own test database, OpInfo, on the device ``kompute`` without the CPU.

    python tests/pytorch/opinfo.py float32 forward results.json [samples] [operator,...]
    python tests/pytorch/opinfo.py table results.json ...

The second word is ``forward`` or ``gradient``, or one of them after ``compiled-`` or ``hosted-``:
then each sample is a graph of torch.compile(backend="kompute_dml"), which runs twice, over tensors
of the device or of the host.

It wants the package expecttest. Each operator's samples run on the CPU and on the device, with
KOMPUTE_DML_TORCH_FALLBACK=0, and are compared at torch.testing's tolerances, or with values in
FLOAT64. The file holds, by operator, the outcome of each sample:
``pass``, ``refused`` with the reason, ``wrong``, ``error``, or ``skip`` where the CPU itself
raises. An operator counts as passed if all its samples pass. ``table`` prints what passes of each
file, and the reasons of what is left.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

FORWARD, GRADIENT = "forward", "gradient"
COMPILED, HOSTED = "compiled-", "hosted-"
"""Before one of these: through torch.compile, with tensors of the device or of the host."""
_RANDOM = ("rand", "bernoulli", "multinomial", "dropout", "normal", "uniform", "exponential",
           "cauchy", "geometric", "poisson", "rrelu", "fractional_max_pool", "empty",
           "multi_head_attention_forward")
"""Operators whose values are drawn: their types and sizes are compared."""


_PRODUCTS = (r"(^|_)(add|b|sp)*(mm|mv)|conv|bilinear|linear|matmul|einsum|linalg|cholesky|hermite"
             r"|(^|_)lu|qr|solve|inverse|det|attention")
"""Operators whose results are sums of products."""


def drawn(name: str) -> bool:
    return any(part in name for part in _RANDOM) and "batch_norm" not in name and (
        "layer_norm" not in name and "group_norm" not in name and "instance_norm" not in name
        and "norm.fro" not in name)


def moved(tree: Any, device: str) -> Any:
    def move(x: torch.Tensor) -> torch.Tensor:
        base = x._base
        if base is None or not base.is_contiguous() or x.is_conj() or x.is_neg():
            return x.detach().to(device).requires_grad_(x.requires_grad)
        whole = base.detach().to(device)
        return whole.as_strided(x.shape, x.stride(), x.storage_offset() - base.storage_offset()
                                ).requires_grad_(x.requires_grad)

    return pytree.tree_map_only(torch.Tensor, move, tree)


def outputs(op: Any, sample: Any, device: str, mode: str, *, graph: bool = False) -> list[Any]:
    """The results of a sample, or its gradients, on the host. With ``graph`` through
    torch.compile."""
    args = moved((sample.input, sample.args), device)
    if op.name == "tensor_split":  # PyTorch wants the places on the CPU
        args = args[0], sample.args
    kwargs = {k: device if k == "device" else v for k, v in moved(sample.kwargs, device).items()}
    run: Any = op
    seeded = common_methods_invocations.wrapper_set_seed
    if graph:
        run = graph_of(op)
        # Some entries seed the generator, which no graph does. Their callers have done so.
        seeded = _unseeded
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", seeded):
        for _ in range(2 if graph else 1):
            results = pytree.tree_leaves(run(args[0], *args[1], **kwargs))
    if graph and not counters["stats"]["unique_graphs"]:
        raise NotImplementedError(f"{NO_GRAPH} {op.name}")
    if mode.endswith(GRADIENT):
        inputs = [x for x in pytree.tree_leaves((args, kwargs))
                  if isinstance(x, torch.Tensor) and x.requires_grad]
        ends = [y for y in results if isinstance(y, torch.Tensor) and y.requires_grad]
        if not inputs or not ends:
            raise LookupError("nothing to differentiate")
        results = list(torch.autograd.grad(ends, inputs, [torch.ones_like(y) for y in ends],
                                           allow_unused=True))
    for y in results:
        if isinstance(y, torch.Tensor) and y.device.type != device and op.name != "to":
            raise ValueError(f"a result is on the device {y.device}")
    return [y.detach().cpu() if isinstance(y, torch.Tensor) else y for y in results]


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


NO_GRAPH = "PyTorch traces no graph of"


def graph_of(op: Any) -> Callable[..., Any]:
    """The operator through torch.compile."""
    torch._dynamo.reset()
    counters.clear()

    def call(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    return torch.compile(call, backend="kompute_dml", dynamic=False)


def tolerances(op: Any, y: torch.Tensor) -> dict[str, float]:
    """torch.testing's, but for sums of products: their terms may cancel, so errors are as large
    as the last places of the largest result."""
    known = {torch.float32: (1.3e-6, 4), torch.float16: (1e-3, 1), torch.bfloat16: (1.6e-2, 1)
             }.get(y.dtype)
    if known is None or not y.numel() or not re.search(_PRODUCTS, op.name):
        return {}
    largest = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 0.0
    return {"rtol": known[0], "atol": max(1e-5, known[1] * torch.finfo(y.dtype).eps * largest)}


def settled(op: Any, sample: Any) -> None:
    """Ask for the one order of equal elements that there is: others have several right results."""
    if op.name in ("sort", "argsort"):
        names = dict(zip(("dim", "descending"), sample.args))
        sample.args, sample.kwargs = (), {**sample.kwargs, **names, "stable": True}


def comparable(op: Any, sample: Any, results: Sequence[Any]) -> list[Any]:
    """The results, with the elements that places name instead of places among equal elements."""
    if op.name not in ("topk", "kthvalue") or len(results) != 2 or not results[1].numel():
        return [*results]
    x, places = sample.input.detach().cpu(), results[1]
    if not x.ndim:
        return [*results]
    dim = sample.kwargs.get("dim", sample.args[1] if len(sample.args) > 1 else -1)
    if places.ndim < x.ndim:
        places = places.unsqueeze(dim)
    return [results[0], torch.gather(x, dim, places)]


def outcome(op: Any, sample: Any, mode: str, random: bool) -> tuple[str, str]:
    settled(op, sample)
    try:
        torch.manual_seed(0)
        expected = outputs(op, sample, "cpu", mode)
    except Exception as error:
        return "skip", f"the CPU raises {type(error).__name__}"
    try:
        torch.manual_seed(0)
        found = outputs(op, sample, "cpu" if mode.startswith(HOSTED) else "kompute", mode,
                        graph=mode.startswith((COMPILED, HOSTED)))
    except NotImplementedError as error:
        return "refused", str(error)[:300]
    except Exception as error:
        error = getattr(error, "inner_exception", None) or error.__cause__ or error
        if isinstance(error, NotImplementedError):
            return "refused", str(error)[:300]
        return "error", f"{type(error).__name__}: {str(error)[:300]}"
    for i, (x, y) in enumerate(zip(
            *(comparable(op, sample, z) for z in (found, expected)), strict=True)):
        if not isinstance(y, torch.Tensor):
            continue
        if "layer_norm" in op.name and y.dtype in (torch.bfloat16, torch.float16):
            x = x.to(y.dtype)  # statistics, which only the CPU has in these types
        try:
            if not y.numel() and "batch_norm" in op.name:
                continue  # statistics that only the CPU leaves out
            if random:
                assert x.shape == y.shape and x.dtype == y.dtype, f"{x.shape} {x.dtype}"
            else:
                torch.testing.assert_close(x, y, equal_nan=True, check_stride=False,
                                           **tolerances(op, y))
        except AssertionError as error:
            if random or not _as_exact(op, sample, mode, found, expected, i):
                return "wrong", str(error)[:300]
    return "pass", ""


def _as_exact(op: Any, sample: Any, mode: str, found: Sequence[Any], expected: Sequence[Any],
              i: int) -> bool:
    """Whether a result is no farther from that in FLOAT64 than the CPU's is."""
    def wider(tree: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().double().requires_grad_(
            x.requires_grad) if x.dtype in _NARROW else x, tree)

    try:
        exact = outputs(op, types.SimpleNamespace(
            input=wider(sample.input), args=wider(sample.args), kwargs=wider(sample.kwargs)),
            "cpu", mode)
        x, y, z = found[i], expected[i], exact[i]
        torch.testing.assert_close(x.double().isfinite(), z.isfinite())
        ours, theirs = ((v.double() - z).abs().nan_to_num().max() for v in (x, y))
        return bool(ours <= theirs)
    except Exception:
        return False


_NARROW = torch.bfloat16, torch.float16, torch.float32
REASONS = (
    ("no graph of PyTorch's own", NO_GRAPH),
    ("complex numbers: only those of FLOAT32 are stored, and few functions of them computed",
     r"complex|torch\.c(32|64|128)"),
    ("sparse tensors: no such elements in DirectML", r"sparse|to_dense|coalesce"),
    ("FLOAT64: DirectML computes nothing with it", r"FLOAT64|float64|double"),
    ("linear algebra: a stated step of the host",
     r"linalg|cholesky|\blu|geqrf|householder|ormqr|orgqr|\bqr|svd|eig|inverse|lstsq|logdet|pca"
     r"|triangular_solve"),
    ("special functions without a lowering",
     r"special_|polygamma|igamma|zeta|bessel|polynomial|mvlgamma|polar"),
    ("strings of segments and losses over paths", r"ctc|segment|jagged|nested"),
    ("no lowering yet", r""),
)
"""Why operators are refused: the first pattern that the operator's name or the message has."""


def table(paths: Sequence[str]) -> str:
    """What passes, and by reason the operators that are left."""
    lines = ["| run | operators | passed | refused | wrong or failed |",
             "| --- | --- | --- | --- | --- |"]
    left: dict[str, set[str]] = {reason: set() for reason, _ in REASONS}
    wrong: set[str] = set()
    for path in paths:
        kinds: collections.Counter[str] = collections.Counter()
        for label, samples in json.loads(Path(path).read_text("utf-8")).items():
            seen = {kind for kind, _ in samples if kind != "skip"}
            kind = "wrong" if seen & {"wrong", "error"} else "refused" if "refused" in seen else (
                "passed" if seen else "skipped")
            kinds[kind] += 1
            if kind == "wrong":
                wrong.add(label)
            elif kind == "refused":
                said = label + " ".join(why for what, why in samples if what == "refused")
                left[next(r for r, pattern in REASONS if re.search(pattern, said))].add(label)
        total = sum(kinds.values()) - kinds["skipped"]
        lines.append(f"| {Path(path).stem} | {total} | {kinds['passed']} | {kinds['refused']} | "
                     f"{kinds['wrong']} |")
    lines += ["", "| what is left | operators |", "| --- | --- |"]
    lines += [f"| {reason} | {', '.join(sorted(labels))} |" for reason, labels in left.items()
              if labels]
    if wrong:
        lines.append(f"| **wrong or failed** | {', '.join(sorted(wrong))} |")
    return "\n".join(lines)


STUCK = 90.0
"""Seconds that one operator may take."""
_BEGUN = [["error", "the process ended, or the operator took too long"]]
_CHILD = "KOMPUTE_DML_OPINFO_CHILD"


def watched(file: Path) -> None:
    """Run this command in a process of its own. Begin it anew when an operator ends it, and when
    one takes too long: what is in the file is not run again."""
    while True:
        child = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, _CHILD: "1"})
        before = seen = file.read_bytes() if file.exists() else b""
        since = time.monotonic()
        while child.poll() is None:
            time.sleep(1.0)
            now = file.read_bytes() if file.exists() else b""
            if now != seen:
                seen, since = now, time.monotonic()
            elif seen != before and time.monotonic() - since > STUCK:
                child.kill()
        if child.wait() == 0 or seen == before:
            return


def cases(dtype: torch.dtype, mode: str) -> list[Any]:
    """The operators of OpInfo that PyTorch computes on the CPU in this type."""
    found = []
    for op in common_methods_invocations.op_db:
        forward = mode.endswith(FORWARD)
        dtypes = op.supported_dtypes("cpu") if forward else op.supported_backward_dtypes("cpu")
        if dtype in dtypes and (forward or op.supports_autograd):
            found.append(op)
    return found


def outcomes(op: Any, dtype: torch.dtype, mode: str, count: int) -> list[tuple[str, str]]:
    """What becomes of the first samples of an operator."""
    began, found = time.monotonic(), []
    try:
        for sample in op.sample_inputs("cpu", dtype, requires_grad=mode.endswith(GRADIENT)):
            if len(found) >= count or time.monotonic() - began > STUCK / 4:
                break
            found.append(outcome(op, sample, mode, drawn(op.formatted_name)))
    except Exception as error:
        found.append(("skip", f"the samples raise {type(error).__name__}: {error}"[:200]))
    return found


def main() -> None:
    if sys.argv[1] == "table":
        print(table(sys.argv[2:]))
        return
    name, mode, path = sys.argv[1:4]
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    only = sys.argv[5].split(",") if len(sys.argv) > 5 else None
    file = Path(path)
    if _CHILD not in os.environ:
        watched(file)
        print(table([path]))
        return
    os.environ["KOMPUTE_DML_TORCH_FALLBACK"] = "0"
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    import kompute_dml.torch  # noqa: F401

    dtype, whole = getattr(torch, name), file.with_suffix(".part")
    results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for op in cases(dtype, mode):
        label = op.formatted_name
        if label in results or (only and label not in only):
            continue
        for found in (_BEGUN, None):
            results[label] = found or outcomes(op, dtype, mode, count)
            whole.write_text(json.dumps(results, indent=0), "utf-8")
            whole.replace(file)


if __name__ == "__main__":
    main()
