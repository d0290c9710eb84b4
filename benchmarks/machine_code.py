"""The machine code that NVIDIA's driver makes of the shaders, with its scheduling.

    __GL_SHADER_DISK_CACHE_PATH=CACHE KOMPUTE_DML_PIPELINES= kompute-dml bench --filter gemm
    python benchmarks/machine_code.py CACHE FOLDER

writes ``FOLDER/000.sass`` and so on, one for each shader in the driver's disk cache, and prints a
line for each: its registers and how often it has which instruction. Names of shaders are not
kept: a shader is found by these counts, or by giving each run a cache of its own. A line of a
``.sass`` file has the address, the least cycles until the next instruction (``st``), the
scoreboards that the instruction sets when it writes (``W``) and reads (``R``), those that it waits
for, and the instruction as nvdisasm prints it. It needs zstandard, and nvdisasm from CUDA, which
PyTorch's package triton has, too (``NVDISASM`` names it).
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_HEADER, _ENTRY, _PREFIX = 0x20, 0x18, 0x24
"""Bytes of the table's header, of one of its entries, and before each object."""
_REGISTERS, _CODE = 3, 1
"""Types of sections."""
_ARCHITECTURE = "SM90"
_LINE = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(.*?);")
_OPCODE = re.compile(r"(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")


class Shader(NamedTuple):
    registers: int
    code: bytes


def objects(table: bytes, data: bytes, unpacked: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """The objects of a cache: ``table`` is its .toc file, ``data`` its .bin file."""
    for at in range(_HEADER, len(table) - _ENTRY + 1, _ENTRY):
        offset, size = struct.unpack_from("<2I", table, at + 16)
        begin = offset + _PREFIX
        yield unpacked(data[begin : begin + size - 4])


def shader(found: bytes) -> Shader | None:
    """The shader in an object; None if the object is something else."""
    begin = found.find(b"NVuc")
    if begin < 0:
        return None
    found = found[begin:]
    sections = {}
    for n in range(struct.unpack_from("<I", found, 8)[0] & 0xFFFF):
        kind, size, offset = struct.unpack_from("<3I", found, 32 + 32 * n)
        sections[kind] = found[offset : offset + size]
    if _CODE not in sections or _REGISTERS not in sections:
        return None
    return Shader(struct.unpack_from("<I", sections[_REGISTERS])[0], sections[_CODE])


def schedule(instruction: bytes) -> str:
    """The scheduling bits of an instruction of 16 bytes."""
    bits = int.from_bytes(instruction, "little") >> 105
    stall, write, read, wait = bits & 15, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63
    waits = "".join(str(n) if wait >> n & 1 else "." for n in range(6))
    return (f"st{stall:<2} W{'-' if write == 7 else write} R{'-' if read == 7 else read} "
            f"wait {waits}")


def annotated(code: bytes, disassembly: str) -> list[tuple[str, str]]:
    """The lines of a disassembly with their scheduling, and the instruction's name of each."""
    lines = []
    for address, text in _LINE.findall(disassembly):
        at = int(address, 16)
        name = _OPCODE.match(text)
        lines.append((f"{at:04x} {schedule(code[at : at + 16])}  {text.strip()}",
                      name[1] if name else "?"))
    return lines


def _disassembled(code: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".code") as file:
        file.write(code)
        file.flush()
        command = [os.environ.get("NVDISASM", "nvdisasm"), "--binary", _ARCHITECTURE, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(cache: Path, folder: Path) -> None:
    import zstandard

    def unpacked(packed: bytes) -> bytes:
        if not packed.startswith(b"\x28\xb5\x2f\xfd"):
            return packed
        return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(packed))

    folder.mkdir(parents=True, exist_ok=True)
    number, seen = 0, set()
    for table in sorted(cache.rglob("*.toc")):
        data = table.with_suffix(".bin").read_bytes()
        for found in map(shader, objects(table.read_bytes(), data, unpacked)):
            if found is None or found.code in seen:
                continue
            seen.add(found.code)
            lines = annotated(found.code, _disassembled(found.code))
            (folder / f"{number:03}.sass").write_text("\n".join(line for line, _ in lines) + "\n")
            counts = Counter(name for _, name in lines).most_common()
            print(f"{number:03}: {found.registers} registers, {len(lines)} instructions:",
                  ", ".join(f"{count} {name}" for name, count in counts[:12]))
            number += 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
