"""Reads text in images on the device: python examples/read_text.py [image ...]

The models are PP-OCR's, out of `pip install '.[onnxruntime]' rapidocr`; RapidOCR prepares the
images and puts the lines together. Without an image a note is drawn and read. Each result lies
beside its image, as IMAGE-read.png: the lines that were found, and what they say.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import rapidocr
from omegaconf import flag_override
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

import kompute_dml.onnxruntime as kompute

NOTE = ("Kompute on Vulkan", "177 operators of DirectML", "read line by line")
MODELS = {"Det": "*det_small.onnx", "Cls": "*cls*.onnx", "Rec": "*rec_small.onnx"}
"""What finds lines, what tells whether they stand upside down, and what reads them."""


def reader(session: Any = kompute.session) -> Any:
    """RapidOCR, whose models run where ``session`` says."""
    folder = Path(rapidocr.__file__).parent / "models"
    # Images are taken in their own size, up to 960 pixels.
    read = rapidocr.RapidOCR(params={"Global.log_level": "error", "Det.limit_type": "max",
                                     "Det.limit_side_len": 960})
    with flag_override(read.cfg, "allow_objects", True):
        for stage, pattern in MODELS.items():
            (model,) = folder.glob(pattern)
            read.cfg[stage].session = session(str(model))
    return read


def note() -> Image.Image:
    page = Image.new("RGB", (640, 60 + 70 * len(NOTE)), "#fbf7e9")
    font = ImageFont.load_default(40)
    for i, line in enumerate(NOTE):
        ImageDraw.Draw(page).text((40, 40 + 70 * i), line, fill="#20242a", font=font)
    return page


def drawn(image: Image.Image, found: Any) -> Image.Image:
    """The image with its lines framed, and what they say beside it."""
    page = Image.new("RGB", (image.width * 2, image.height), "white")
    page.paste(image, (0, 0))
    draw = ImageDraw.Draw(page)
    for box, text, score in zip(found.boxes, found.txts, found.scores):
        draw.polygon([tuple(point) for point in box], outline="#d9571c", width=3)
        left, top = box[0]
        draw.text((image.width + left, top), f"{text}  {score:.0%}", fill="#1769c2",
                  font=ImageFont.load_default(max(12, 0.5 * (box[3][1] - top))))
    return page


def main(paths: list[Path]) -> None:
    if not paths:
        paths = [Path(tempfile.mkdtemp()) / "note.png"]
        note().save(paths[0])
    read = reader()
    for path in tqdm(paths, unit="image"):
        image = Image.open(path).convert("RGB")
        found = read(str(path))
        if found.txts is None:
            tqdm.write(f"{path}: no text")
            continue
        tqdm.write("\n".join(found.txts))
        result = path.with_name(f"{path.stem}-read.png")
        drawn(image, found).save(result)
        tqdm.write(str(result))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
