"""Makes pytest-xdist run tests that share pipelines on one worker.

On a CPU, compiling pipelines takes most of the tests' time. pytest-xdist's own groups (the mark
``xdist_group``) have no effect with pytest 9.2.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from kompute_dml.operators.base import definitions

_TOGETHER = ("test_wheel_install.py",)
"""Files whose tests share something that takes long to make, and no pipelines."""


def _short(name: str) -> str:
    """The short name of an operator, from any form in a test's name."""
    return re.sub("^(dml_operator_|element_wise_|activation_)*", "", name.lower())


@cache
def _operators() -> frozenset[str]:
    return frozenset(map(_short, definitions()))


@cache
def sharing(nodeid: str) -> str:
    """A key that tests with the same pipelines share: their operator, or else their function."""
    file = nodeid.partition("::")[0]
    if file.endswith(_TOGETHER):
        return file
    function, _, parameters = nodeid.partition("[")
    words = map(_short, re.split(r"\W", parameters))
    return next((word for word in words if word in _operators()), function)


def by_pipelines(config: pytest.Config, log: Any) -> Any:
    """The scheduler."""
    from xdist.scheduler import LoadScopeScheduling

    class ByPipelines(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return sharing(nodeid)

    return ByPipelines(config, log)
