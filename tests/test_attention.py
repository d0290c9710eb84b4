"""Attention whose keys are split over workgroups, as a device with many cores does it."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.operators import attention

COMBINED = {"attention_combine"}
"""Variants that a device with few tiles does not choose by itself; the test below runs them."""


def test_split_keys_give_what_one_pass_gives(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (own.tensor(rng.normal(size=(1, n, 16)).astype(np.float32)) for n in (5, 391, 391))
    more = dict(scale=0.25, mask_filter_value=-1e4, head_count=2,
                mask_type=dml.MultiheadAttentionMaskType.NONE)
    whole = dml.multihead_attention(q, k, v, **more).numpy()
    parts = (4, 2 * attention._TILE)
    monkeypatch.setattr(attention._Lowering, "_split", lambda self, groups: parts)
    own._compiled.clear()
    split = dml.multihead_attention(q, k, v, **more).numpy()
    assert COMBINED & {n for c in own._compiled.values() for n in c.variants}
    np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-6)
