"""``benchmarks/machine_code.py``, with a cache and a disassembly made here."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def machine_code() -> Any:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "machine_code.py"
    spec = importlib.util.spec_from_file_location("machine_code", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["machine_code"] = module
    spec.loader.exec_module(module)
    return module


def _instruction(stall: int, write: int, read: int, wait: int) -> bytes:
    return ((stall | write << 5 | read << 8 | wait << 11) << 105).to_bytes(16, "little")


def _object(code: bytes, registers: int) -> bytes:
    """Two sections behind a table of them, behind other words."""
    sections = ((3, struct.pack("<I", registers)), (1, code))
    at, table, body = 32 + 32 * len(sections), b"", b""
    for kind, content in sections:
        table += struct.pack("<3I", kind, len(content), at + len(body)) + bytes(20)
        body += content
    head = b"NVuc" + struct.pack("<2I", 1, len(sections)) + bytes(20)
    return b"NVVM" + head + table + body


def test_shaders_are_found_in_a_cache(machine_code: Any) -> None:
    code = _instruction(6, 7, 0, 0b100001)
    packed = [b"ELF and so on", _object(code, 239)]
    table, data = bytes(0x20), b""
    for content in packed:
        table += bytes(16) + struct.pack("<2I", len(data), len(content) + 4)
        data += bytes(0x24) + content
    found = [*machine_code.objects(table, data, lambda x: x)]
    assert found == packed
    assert machine_code.shader(found[0]) is None
    assert machine_code.shader(found[1]) == (239, code)


def test_lines_have_their_scheduling(machine_code: Any) -> None:
    code = _instruction(6, 7, 0, 0b100001) + _instruction(11, 5, 7, 0)
    text = """
        /*0000*/                   HMMA.16816.F32 R0, R164.reuse, R150, R0 ;
        /*0010*/              @!P1 LDG.E.128.CONSTANT R192, [R192.U32+UR6], !P1 ;
    """
    assert machine_code.annotated(code, text) == [
        ("0000 st6  W- R0 wait 0....5  HMMA.16816.F32 R0, R164.reuse, R150, R0", "HMMA"),
        ("0010 st11 W5 R- wait ......  @!P1 LDG.E.128.CONSTANT R192, [R192.U32+UR6], !P1", "LDG"),
    ]
