"""Images as DxDispatch has them: NCHW, one image, channels red, green, blue, alpha, from 0 to 1."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import DataType
from ..errors import UnsupportedError, ValidationError, expect

SUFFIXES = (".jpg", ".jpeg", ".png")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's, by the number of channels."""


def decode(path: Path, data_type: DataType, sizes: Sequence[int]) -> np.ndarray:
    """The values of an image, flat. It is scaled to ``sizes`` (NCHW); without any it is RGB, in
    its own size. Raises ValidationError for what is no image."""
    pillow = _pillow()
    _check(str(path), data_type, sizes or (1, 3, 1, 1))
    try:
        with pillow.open(path) as image:
            pixels = image.convert(_MODES[sizes[1] if sizes else 3])
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ValidationError(f"{path} is no image that Pillow reads: {error}") from None
    if sizes and pixels.size != (sizes[3], sizes[2]):
        pixels = pixels.resize((sizes[3], sizes[2]), pillow.Resampling.BICUBIC)
    channels_last = np.asarray(pixels).reshape(pixels.height, pixels.width, -1)
    values = channels_last.transpose(2, 0, 1) / np.float32(255)
    return np.ascontiguousarray(values, data_type.dtype).reshape(-1)


def encode(values: np.ndarray, suffix: str, name: str) -> bytes:
    """The file of ``values``, of the kind that ``suffix`` says. Fractions of a level are cut off.

    ``name`` stands in errors.
    """
    pillow, sizes = _pillow(), values.shape
    _check(name, DataType.of(values.dtype), sizes)
    expect(suffix == ".png" or sizes[1] != 4, name, "dimensions", "have no alpha in a JPEG",
           list(sizes))
    levels = (np.clip(np.nan_to_num(values), 0, 1) * np.float32(255)).astype(np.uint8)
    channels_last = levels[0].transpose(1, 2, 0)
    image = pillow.fromarray(channels_last[..., 0] if sizes[1] == 1 else channels_last)
    file = io.BytesIO()
    image.save(file, "PNG" if suffix == ".png" else "JPEG")
    return file.getvalue()


def _check(name: str, data_type: DataType, sizes: Sequence[int]) -> None:
    expect(data_type in (DataType.FLOAT32, DataType.FLOAT16), name, "data type",
           "be FLOAT32 or FLOAT16 for an image", data_type)
    expect(len(sizes) == 4 and sizes[0] == 1 and sizes[1] in _MODES, name, "dimensions",
           "be 1, 1 or 3 or 4 channels, height and width", list(sizes))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise UnsupportedError("Pillow is needed for images: pip install pillow") from None
    return Image
