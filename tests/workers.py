"""Which tests pytest-xdist gives to one worker: those that share pipelines.

Compiling these is most of what the tests take on a CPU. The groups of pytest-xdist itself (the mark
``xdist_group``) come to nothing with pytest 9.2.
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
    """Of an operator, in any of the ways that tests are named by one."""
    return re.sub("^(dml_operator_|element_wise_|activation_)*", "", name.lower())


@cache
def _operators() -> frozenset[str]:
    return frozenset(map(_short, definitions()))


@cache
def sharing(nodeid: str) -> str:
    """What tests with the same pipelines have in common: their operator, or else their function."""
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
