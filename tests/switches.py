"""Environment variables that change the tests of the engine."""

from __future__ import annotations

import os

import pytest

from kompute_dml.runtime.adapters import choose

SCALE = int(os.environ.get("KOMPUTE_DML_TEST_SCALE", "1"))
"""Stress tests are shorter by this factor, for runs under the validation layer."""

SWIFTSHADER = "SwiftShader" in choose(None).name

long_pipelines = pytest.mark.skipif(
    SWIFTSHADER,
    reason="SwiftShader takes 15 seconds to minutes, and gigabytes, to compile these pipelines",
)

shared_blocks = pytest.mark.skipif(
    bool(os.environ.get("KOMPUTE_DML_TEST_WHOLE_BUFFERS")),
    reason="with KOMPUTE_DML_TEST_WHOLE_BUFFERS each tensor is a buffer, touched whole",
)
