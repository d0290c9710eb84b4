"""Environment variables that change the tests of the engine."""

from __future__ import annotations

import os

import pytest

SCALE = int(os.environ.get("KOMPUTE_DML_TEST_SCALE", "1"))
"""Stress tests are shorter by this factor, for runs under the validation layer."""

shared_blocks = pytest.mark.skipif(
    bool(os.environ.get("KOMPUTE_DML_TEST_WHOLE_BUFFERS")),
    reason="with KOMPUTE_DML_TEST_WHOLE_BUFFERS each tensor is a buffer, touched whole",
)
