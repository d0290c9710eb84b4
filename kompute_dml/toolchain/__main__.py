"""`python -m kompute_dml.toolchain`: builds what the package needs, piece by piece."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from . import codes, debian, kp, spirv
from .system import ToolchainError, needed_checkout, say
from .targets import HERE, TARGETS, VERSIONS


def _kp(options: argparse.Namespace) -> None:
    built = kp.wheel(stock=options.stock)
    if options.wheel_dir is not None:
        options.wheel_dir.mkdir(parents=True, exist_ok=True)
        built = Path(shutil.copy(built, options.wheel_dir))
        say(f"kp {kp.VERSION}: {built}")
    if not options.no_install and not kp.install(stock=options.stock):
        say(f"kp {kp.VERSION}: this wheel is installed in {sys.prefix} already")


def _spirv(options: argparse.Namespace) -> None:
    say(str(spirv.build()))
    codes.write()


def _stubs(options: argparse.Namespace) -> None:
    from ..stubs import write

    say(f"types for editors and checkers: {write()}")


def _docs(options: argparse.Namespace) -> None:
    from ..documents import write

    needed_checkout()
    changed = write()
    say(f"documents: {', '.join(changed) or 'all up to date'}")


def _wheel(options: argparse.Namespace) -> None:
    from .wheel import build, provider

    needed_checkout()
    build(options.dir, options.python or (), options.target)
    say(str(provider(options.dir)))


def _sdist(options: argparse.Namespace) -> None:
    from .wheel import sdist

    say(str(sdist(options.dir)))


def _glslang(options: argparse.Namespace) -> None:
    debian.newer_glslang(options.dir)
    say(f"newer glslang: {options.dir / 'bin'}")


def _swiftshader(options: argparse.Namespace) -> None:
    say(f"SwiftShader: VK_DRIVER_FILES={debian.swiftshader(options.dir)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kompute_dml.toolchain", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("kp", help="build kp and install it into this environment")
    command.add_argument("--stock", action="store_true", help="as published, without the fixes")
    command.add_argument("--wheel-dir", type=Path, metavar="DIR", help="copy the wheel there")
    command.add_argument("--no-install", action="store_true", help="only build the wheel")
    command.set_defaults(run=_kp)

    command = commands.add_parser("spirv", help="compile the shaders of a source checkout")
    command.set_defaults(run=_spirv)

    command = commands.add_parser("stubs", help="write the types of all public names")
    command.set_defaults(run=_stubs)

    command = commands.add_parser("docs", help="write the tables of a checkout's documents")
    command.set_defaults(run=_docs)

    command = commands.add_parser(
        "wheel", help="build the wheel that holds shaders, provider library and kp")
    command.add_argument("dir", type=Path, nargs="?", default=Path("dist"), help="where to put it")
    command.add_argument("--python", action="append", choices=VERSIONS,
                         help="a version of CPython to build kp for; by default all")
    command.add_argument("--target", choices=TARGETS, default=HERE,
                         help="what it shall run on; by default a machine as this one")
    command.set_defaults(run=_wheel)

    command = commands.add_parser("sdist", help="build the source distribution")
    command.add_argument("dir", type=Path, nargs="?", default=Path("dist"), help="where to put it")
    command.set_defaults(run=_sdist)

    command = commands.add_parser("glslang", help="get a newer glslang without installing it")
    command.add_argument("dir", type=lambda text: Path(text).resolve(), help="where to put it")
    command.set_defaults(run=_glslang)

    command = commands.add_parser("swiftshader", help="get a second Vulkan driver for the CPU")
    command.add_argument("dir", type=lambda text: Path(text).resolve(), help="where to put it")
    command.set_defaults(run=_swiftshader)

    options = parser.parse_args()
    try:
        options.run(options)
    except (ToolchainError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
