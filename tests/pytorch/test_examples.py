"""The programs in examples/ that want PyTorch, on tiny sizes."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_lora(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses on both devices, what is frozen stays, and the picture shows both."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    torch._dynamo.reset()
    torch.manual_seed(0)
    names = runpy.run_path(str(EXAMPLES / "finetune_lora.py"))
    sizes = names["Sizes"](width=8, heads=2, layers=1, rank=2, batch=2, length=6)
    losses = names["compare"](4, sizes)
    assert losses["kompute"] == pytest.approx(losses["cpu"], rel=1e-5)
    assert len({*losses["cpu"]}) == 4
    lines = xml.fromstring(names["picture"](losses)).findall(".//{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [4, 4]


def test_lora_trains_what_it_adds_only() -> None:
    names = runpy.run_path(str(EXAMPLES / "finetune_lora.py"))
    sizes = names["Sizes"](width=8, heads=2, layers=1, rank=2, batch=2, length=6)
    torch.manual_seed(0)
    model = names["Llama"](sizes).to("kompute")
    before = {name: p.detach().cpu() for name, p in model.named_parameters()}
    windows = names["windows_of"](bytes(range(64)), 2, sizes).to("kompute")
    names["finetune"](model, windows, 2)
    changed = {name for name, p in model.named_parameters()
               if not torch.equal(p.detach().cpu(), before[name])}
    assert changed == {name for name in before if ".up.weight" in name or ".down.weight" in name
                       if "layer" not in name}
