"""Chats with a language model on the device: python examples/generate.py FOLDER [--help]

The folder has an ONNX model (model.onnx, there or in onnx/) and its tokenizer.json, as exports for
onnxruntime-genai, of optimum and for transformers.js have; docs/generation.md says how to get one.
It takes `pip install '.[onnxruntime]' onnx tokenizers jinja2`. Where the folder has a template for
chats, each line is a turn of one, else the model goes on with it. An empty line begins anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from decoder import Decoder, Place
from tokenizers import Tokenizer

import kompute_dml as dml

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def settings(folder: Path) -> dict[str, Any]:
    """What the folder's files say of the model, the more special file last."""
    found: dict[str, Any] = {}
    for name in ("config", "generation_config", "tokenizer_config", "genai_config"):
        path = folder / f"{name}.json"
        read = json.loads(path.read_text()) if path.is_file() else {}
        found |= {k: v for k, v in {**read, **read.get("model", {})}.items() if v is not None}
    if (path := folder / "chat_template.jinja").is_file():
        found["chat_template"] = path.read_text()
    return found


def model_file(folder: Path) -> Path:
    """The model in a folder."""
    for path in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
        if path.is_file():
            return path
    files = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    if len(files) != 1:
        raise SystemExit(f"{folder}: expected model.onnx, or one .onnx, but found {len(files)}")
    return files[0]


class Chat:
    """A model with its tokenizer, and the conversation so far."""

    def __init__(self, folder: Path, context: int, place: Place | None = None) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        about = settings(folder)
        most = about.get("context_length") or about.get("max_position_embeddings") or context
        self.decoder = Decoder(model_file(folder), min(context, most), place=place)
        ends = about.get("eos_token_id", [])
        self.ends = {ends} if isinstance(ends, int) else set(ends)
        self._template: Any = about.get("chat_template")
        self._special = {k: v.get("content", "") if isinstance(v, dict) else v
                         for k, v in about.items() if k in ("bos_token", "eos_token")}
        self.restart()

    def restart(self) -> None:
        """Begin a new conversation."""
        self.turns: list[dict[str, str]] = []
        self.read: list[int] = []
        """The tokens that the model has read."""
        self.tokens: list[int] = []
        """All of the conversation."""
        self.decoder.restart()

    def ask(self, text: str) -> list[int]:
        """The tokens of the whole conversation with a further turn."""
        if self._template is None:
            begins = not self.tokens
            return [*self.tokens, *self.tokenizer.encode(text, add_special_tokens=begins).ids]
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.turns.append({"role": "user", "content": text})
        template = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True).from_string(self._template)
        whole = template.render(messages=self.turns, add_generation_prompt=True, **self._special)
        return self.tokenizer.encode(whole, add_special_tokens=False).ids

    def answer(self, ids: Sequence[int], most: int, choose: Any) -> Iterator[int]:
        """Tokens that follow a conversation, until one of its ends. What the model has read of it
        is not read again."""
        same = next((i for i, (a, b) in enumerate(zip(self.read, ids)) if a != b),
                    min(len(self.read), len(ids) - 1))
        if same < len(self.read):
            same = same if self.decoder.shares else 0
            self.decoder.restart(same)
        self.read, self.tokens = [*ids[:same]], [*ids]
        for _ in range(min(most, self.decoder.capacity - len(ids))):
            rest = self.tokens[len(self.read):]
            word = choose(self.decoder.logits(rest))
            self.read += rest
            if word in self.ends:
                return
            self.tokens.append(word)
            yield word

    def streamed(self, words: Iterator[int]) -> Iterator[str]:
        """Pieces of text, as tokens complete them."""
        ids: list[int] = []
        shown = ""
        for word in words:
            ids.append(word)
            text = self.tokenizer.decode(ids)
            if not text.endswith(_UNFINISHED):
                yield text[len(shown):]
                shown = text
        if self._template is not None:
            self.turns.append({"role": "assistant", "content": shown})


def chooser(temperature: float, top_k: int, seed: int | None) -> Any:
    """What takes a word by its logits: the most probable one at temperature 0."""
    rng = np.random.default_rng(seed)

    def choose(logits: np.ndarray) -> int:
        if not temperature:
            return int(logits.argmax())
        best = np.argpartition(logits, -top_k)[-top_k:] if top_k < len(logits) else np.arange(
            len(logits))
        shares = np.exp((logits[best] - logits[best].max()) / temperature)
        return int(rng.choice(best, p=shares / shares.sum()))

    return choose


def turn(chat: Chat, text: str, most: int, choose: Any) -> str:
    """Print an answer as it comes, and what it took."""
    begin = time.perf_counter()
    times: list[float] = []
    ids = chat.ask(text)

    def timed() -> Iterator[int]:
        for word in chat.answer(ids, most, choose):
            times.append(time.perf_counter())
            yield word

    pieces = []
    for piece in chat.streamed(timed()):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    if len(chat.tokens) >= chat.decoder.capacity:
        print(f"[no room for more than {chat.decoder.capacity} tokens: an empty line begins anew]")
    if times:
        rate = (len(times) - 1) / max(times[-1] - times[0], 1e-9)
        memory = dml.default_device().memory_used / 2**30
        print(f"[{len(ids)} tokens read, {len(times)} written: the first after "
              f"{times[0] - begin:.2f} s, then {rate:.1f} a second; "
              f"{memory:.2f} GiB on the device]")
    return "".join(pieces)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", help="answer this, and end")
    parser.add_argument("--context", type=int, default=4096, help="the most tokens in all")
    parser.add_argument("--most", type=int, default=512, help="the most tokens of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args(words)
    chat = Chat(asked.folder, asked.context)
    choose = chooser(asked.temperature, asked.top_k, asked.seed)
    if asked.prompt is not None:
        turn(chat, asked.prompt, asked.most, choose)
        return
    while True:
        print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            turn(chat, line.strip(), asked.most, choose)
        else:
            chat.restart()


if __name__ == "__main__":
    main(sys.argv[1:])
