"""``python -m kompute_dml.onnxruntime [OPTIONS] [-m] APP [ARGUMENTS]``: an application of ONNX
Runtime, unmodified, whose models run on a Vulkan device."""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import sys
from pathlib import Path

from ..errors import DmlError
from .applications import VARIABLE, Settings, activate

_PROGRAM = "python -m kompute_dml.onnxruntime"


def main() -> None:
    """Run the application that the command line names."""
    parser = argparse.ArgumentParser(
        _PROGRAM, allow_abbrev=False,
        description="Run an application of ONNX Runtime, unmodified. Its models run on a Vulkan "
                    "device. What runs where is said on stderr.",
        epilog=f"Processes that it starts do the same: {VARIABLE} is set for them.")
    parser.add_argument("-m", dest="is_module", action="store_true", help="APP is a module")
    parser.add_argument("--strict", action="store_true",
                        help="a model of which a node is left to the CPU is an error")
    parser.add_argument("--claim", metavar="NODES",
                        help="auto (the default), all, or names of operators with commas")
    parser.add_argument("--option", metavar="NAME=VALUE", action="append", default=[],
                        help="another option of the provider, such as adapter=0")
    parser.add_argument("--explain", action="store_true",
                        help="print at the end where each node runs, and why")
    parser.add_argument("app", metavar="APP", help="a Python file, or the name of a command")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    words = [*asked.option, *["strict"] * asked.strict, *["explain"] * asked.explain]
    if asked.claim is not None:
        words.append(f"claim={asked.claim.replace(' ', '')}")
    path = None
    if not asked.is_module:
        path = asked.app if os.path.isfile(asked.app) else shutil.which(asked.app)
        if path is None:
            parser.error(f"{asked.app} is neither a file nor a command")
    os.environ[VARIABLE] = " ".join(words) or "1"
    try:
        Settings(os.environ[VARIABLE])
        activate()
    except DmlError as error:
        parser.error(str(error))
    except ModuleNotFoundError as error:
        parser.error(f"{error.name} is needed for this: pip install onnxruntime")
    sys.argv = [path or asked.app, *asked.arguments]
    if path is None:
        runpy.run_module(asked.app, run_name="__main__", alter_sys=True)
    elif _is_python(path):
        sys.path[0] = os.path.dirname(os.path.abspath(path))
        runpy.run_path(path, run_name="__main__")
    else:
        os.execv(path, sys.argv)  # Python processes that it starts read the variable


def _is_python(path: str) -> bool:
    """Whether a file is a program in Python: it is named so, or its first line names Python."""
    if path.endswith((".py", ".pyz")):
        return True
    with Path(path).open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first


if __name__ == "__main__":
    main()
