"""Random programs: eager on the CPU, eager on the device, and compiled there.

``random_programs.py`` runs more of them.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")

from random_programs import (  # noqa: E402
    AGREED,
    REFUSED,
    Argument,
    Program,
    Storage,
    is_of_pytorch,
    judged,
    outcome,
)

EACH = 8


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")


@pytest.mark.parametrize("first", range(0, 80, EACH))
def test_programs_agree(first: int) -> None:
    wrong = [text for seed in range(first, first + EACH) if (text := judged(seed))]
    assert not wrong, "\n".join(wrong)


SHARED = {
    "an argument's end": ["v0 = a0[1:]", "return [v0, a0, v0.t()]"],
    "a value, its beginning and its opposite": ["v0 = a0 * 2", "return [v0[:2], -v0, v0.t(), v0]"],
    "the same value twice": ["v0 = a0 + 1", "return [v0, v0, v0.unsqueeze_(0)]"],
    "a copy": ["v0 = a0 + 1", "return [v0, v0.clone(), v0.detach()]"],
    "an element many times": ["return [a0.sum().expand(3, 2), a0[:, :1].sin().expand(3, 5)]"],
    "parts of a transposed value": ["v0 = a0.t() * 2", "return [*v0.split(2), v0.diagonal()]"],
    "other types": ["v0 = a0 + 1", "return [v0.view(torch.int32), v0]"],
    "a changed view": ["v0 = a0.clone()", "v1 = v0[1]", "v1.add_(a0[0])", "return [v1, v0.mT]"],
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_results_share_memory(name: str, dynamic: bool, gradients: bool) -> None:
    """A change of one changes those that PyTorch lets share its memory, and no others."""
    if dynamic and name == "parts of a transposed value":
        pytest.skip("a transposed result of open sizes is packed")
    program = Program(SHARED[name], [Storage(40, torch.float32, 3)],
                      [Argument(0, [3, 4], [4, 1], 8)], gradients, dynamic)
    found = outcome(program)
    assert found == AGREED or (gradients and (found == REFUSED or is_of_pytorch(program))), found
