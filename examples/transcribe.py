"""Writes down speech on the device: python examples/transcribe.py FOLDER RECORDING.wav [language]

The folder has a Whisper model as optimum's exports and those for transformers.js have it, there or
in onnx/: encoder_model.onnx, and decoder_model_merged.onnx or decoder_model.onnx with
decoder_with_past_model.onnx; and tokenizer.json, config.json and generation_config.json. It takes
`pip install '.[onnxruntime]' onnx tokenizers`. The recording has 16 bits; other rates than 16 kHz
are resampled, the mean of channels is taken. The language is a code such as "en"; without one it is
recognized.
"""

from __future__ import annotations

import json
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from decoder import TYPES, Decoder, Place
from tokenizers import Tokenizer

RATE, WINDOW, HOP = 16_000, 400, 160
_MOST_TOKENS = 448


def samples(path: Path) -> np.ndarray:
    """Numbers from -1 to 1, 16,000 a second."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            raise SystemExit(f"{path}: expected 16 bits, but got {8 * file.getsampwidth()}")
        channels, rate = file.getnchannels(), file.getframerate()
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    mono = data.reshape(-1, channels).mean(axis=1, dtype=np.float32) / 32768
    if rate == RATE:
        return mono
    count = len(mono) * RATE // rate
    at = np.arange(count) * (rate / RATE)
    return np.interp(at, np.arange(len(mono)), mono).astype(np.float32)


def mel_filters(count: int) -> np.ndarray:
    """[frequency, filter]: triangles of area 1 on Slaney's scale, which is linear up to 1 kHz."""
    step, knee, growth = 200 / 3, 1000.0, np.log(6.4) / 27

    def to_mel(f: float) -> float:
        return f / step if f < knee else knee / step + np.log(f / knee) / growth

    mels = np.linspace(to_mel(0), to_mel(RATE / 2), count + 2)
    linear = mels < knee / step
    edges = np.where(linear, mels * step, knee * np.exp(growth * (mels - knee / step)))
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    up = (frequencies - edges[:-2]) / np.diff(edges)[:-1]
    down = (edges[2:] - frequencies) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))


def features(sound: np.ndarray, filters: np.ndarray, frames: int) -> np.ndarray:
    """What Whisper's encoder reads, [filter, frame], of as much as it hears at once."""
    sound = np.pad(sound[: frames * HOP], (0, max(0, frames * HOP - len(sound))))
    padded = np.pad(sound, WINDOW // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(windows * hann)) ** 2
    levels = np.log10(np.maximum(power @ filters, 1e-10)).T
    return (np.maximum(levels, levels.max() - 8) + 4) / 4


class Whisper:
    """An encoder, a decoder and their tokens."""

    def __init__(self, folder: Path, place: Place | None = None) -> None:
        self.place = place or Place()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        files = folder / "onnx" if (folder / "onnx").is_dir() else folder
        self.encoder, _ = self.place.session(files / "encoder_model.onnx")
        merged, first, later = (files / f"{name}.onnx" for name in (
            "decoder_model_merged", "decoder_model", "decoder_with_past_model"))
        self.decoder = (Decoder(merged, _MOST_TOKENS, place=self.place) if merged.is_file()
                        else Decoder(first, _MOST_TOKENS, later=later, place=self.place))
        config = json.loads((folder / "config.json").read_text())
        file = folder / "generation_config.json"
        about = {**config, **(json.loads(file.read_text()) if file.is_file() else {})}
        self.start, self.end = about["decoder_start_token_id"], about["eos_token_id"]
        self.languages: dict[str, int] = about.get("lang_to_id", {})
        self.tasks: dict[str, int] = about.get("task_to_id", {})
        self.quiet: list[int] = about.get("suppress_tokens") or []
        self.quiet_at_first: list[int] = about.get("begin_suppress_tokens") or []
        x = self.encoder.get_inputs()[0]
        self._kind = TYPES[x.type]
        self.mels = x.shape[1] if isinstance(x.shape[1], int) else about.get("num_mel_bins", 80)
        self.frames = x.shape[2] if isinstance(x.shape[2], int) else 2 * about.get(
            "max_source_positions", 1500)
        self._filters = mel_filters(self.mels)

    def windows(self, sound: np.ndarray) -> Iterator[np.ndarray]:
        """Parts of a recording that the encoder hears at once."""
        each = self.frames * HOP
        for begin in range(0, len(sound), each):
            yield sound[begin : begin + each]

    def words(self, sound: np.ndarray, language: str | None = None) -> Iterator[int]:
        """Tokens of what is said in a window."""
        heard = features(sound, self._filters, self.frames)[None].astype(self._kind)
        (encoded,) = self.encoder.run(None, {self.encoder.get_inputs()[0].name: heard})[:1]
        self.decoder.encoded = self.place.value(encoded)
        self.decoder.restart()
        logits = self.decoder.logits([self.start])
        prompt = []
        if self.languages:
            ids = [*self.languages.values()]
            prompt = [ids[int(logits[ids].argmax())] if language is None
                      else self.languages[f"<|{language}|>"]]
            prompt.append(self.tasks["transcribe"])
        if (plain := self.tokenizer.token_to_id("<|notimestamps|>")) is not None:
            prompt.append(plain)
        for word in prompt:
            logits = self.decoder.logits([word])
        logits[self.quiet_at_first] = -np.inf
        while self.decoder.length < _MOST_TOKENS:
            logits[self.quiet] = -np.inf
            word = int(logits.argmax())
            if word == self.end:
                return
            yield word
            logits = self.decoder.logits([word])


def main(folder: Path, recording: Path, language: str | None = None) -> None:
    whisper, sound = Whisper(folder), samples(recording)
    begin, count = time.perf_counter(), 0
    for window in whisper.windows(sound):
        ids: list[Any] = []
        shown = ""
        for word in whisper.words(window, language):
            ids.append(word)
            text = whisper.tokenizer.decode(ids)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                print(text[len(shown):], end="", flush=True)
                shown = text
        count += len(ids)
        print()
    took = time.perf_counter() - begin
    print(f"[{len(sound) / RATE:.1f} s of sound in {took:.1f} s, "
          f"{count / took:.1f} tokens a second]")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
