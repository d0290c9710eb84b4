"""A library of pictures that is searched by words: python examples/immich/service.py [FOLDER]

`pip install '.[onnxruntime]' fastapi uvicorn onnx pillow tqdm rapidocr` and `pip install --no-deps
nudenet` first. FOLDER has CLIP's encoders (pictures.py says which; without it some are made, with
random weights). Then open http://127.0.0.1:8000/, and drop a folder of pictures on the page.

Each adapter has a process of its own with all models. A picture goes to the one that has the
fewest waiting, and those that wait there are looked at together. ``--adapter`` names
the adapters to use, and ``--ray`` lets Ray Serve hold the processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))
import pictures

import kompute_dml as dml


class Workers(Protocol):
    """What computes: both calls are those of :class:`pictures.Models`."""

    async def look(self, content: bytes) -> dict[str, Any]: ...
    async def say(self, text: str) -> list[float]: ...


MOST_AT_ONCE = 16
"""Pictures that a process looks at in one go. Pillow decodes and resizes them side by side."""

_models: pictures.Models
_threads: ThreadPoolExecutor
"""The models and the threads of a process that :class:`Worker` started."""


def _open(clip: str, adapter: str) -> None:
    global _models, _threads
    end_with_parent()
    _models = pictures.Models(clip, adapter)
    _threads = ThreadPoolExecutor(min(MOST_AT_ONCE, os.cpu_count() or 1))


def end_with_parent() -> None:
    """End this process when the one that started it has ended, however that happened."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _ready() -> None:
    """Nothing, which is done once the models are open."""


def _look(contents: list[bytes]) -> list[dict[str, Any] | Exception]:
    return list(_threads.map(_look_at, contents))


def _look_at(content: bytes) -> dict[str, Any] | Exception:
    try:
        return _models.look(content)
    except Exception as error:
        return error


def _say(text: str) -> list[float]:
    return _models.say(text)


class Worker:
    """The process of an adapter. Pictures that come while it computes go to it together."""

    def __init__(self, clip: str, adapter: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.process = ProcessPoolExecutor(1, spawn, _open, (clip, adapter))
        self.pictures: list[tuple[bytes, asyncio.Future[dict[str, Any]]]] = []
        self.sender: asyncio.Task[None] | None = None
        self.waiting = 0

    async def look(self, content: bytes) -> dict[str, Any]:
        answer = asyncio.get_running_loop().create_future()
        self.pictures.append((content, answer))
        self.sender = self.sender or asyncio.create_task(self._send())
        return await answer

    async def say(self, text: str) -> list[float]:
        return await asyncio.wrap_future(self.process.submit(_say, text))

    async def _send(self) -> None:
        while self.pictures:
            batch, self.pictures = self.pictures[:MOST_AT_ONCE], self.pictures[MOST_AT_ONCE:]
            contents = [content for content, _ in batch]
            try:
                results = await asyncio.wrap_future(self.process.submit(_look, contents))
            except Exception as error:  # the process has ended
                results = [error] * len(batch)
            for (_, answer), result in zip(batch, results, strict=True):
                if answer.done():  # who asked has gone
                    continue
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
        self.sender = None


class Processes:
    """A process for each adapter, with its models open."""

    def __init__(self, clip: str, adapters: list[str]) -> None:
        self.workers = [Worker(clip, adapter) for adapter in adapters]
        ready = [worker.process.submit(_ready) for worker in self.workers]
        for adapter, opened in zip(adapters, ready, strict=True):
            try:
                opened.result()
            except BrokenProcessPool:
                sys.exit(f"the models do not open on {adapter}: the error is above")

    @contextlib.contextmanager
    def _least(self) -> Iterator[Worker]:
        """The worker that the fewest wait for."""
        worker = min(self.workers, key=lambda worker: worker.waiting)
        worker.waiting += 1
        try:
            yield worker
        finally:
            worker.waiting -= 1

    async def look(self, content: bytes) -> dict[str, Any]:
        with self._least() as worker:
            return await worker.look(content)

    async def say(self, text: str) -> list[float]:
        with self._least() as worker:
            return await worker.say(text)


def on_ray(clip: str, adapters: list[str]) -> Workers:
    """A replica of Ray Serve for each adapter."""
    import ray
    from ray import serve
    from ray_data import Devices

    # Ray's processes find this folder's modules where this process does.
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}})
    serve.start(proxy_location="Disabled")  # this process has the page

    class Replica:
        def __init__(self, devices: Any) -> None:
            self.models = pictures.Models(clip, ray.get(devices.take.remote()))

        def look(self, content: bytes) -> dict[str, Any]:
            return self.models.look(content)

        def say(self, text: str) -> list[float]:
            return self.models.say(text)

    devices = ray.remote(num_cpus=0)(Devices).remote(adapters)
    deployment = serve.deployment(
        num_replicas=len(adapters), ray_actor_options={"num_cpus": 0.1})(Replica)
    handle = serve.run(deployment.bind(devices), route_prefix=None)

    class Replicas:
        async def look(self, content: bytes) -> dict[str, Any]:
            return await handle.look.remote(content)

        async def say(self, text: str) -> list[float]:
            return await handle.say.remote(text)

    return Replicas()


class Picture(NamedTuple):
    name: str
    content: bytes
    found: dict[str, Any]


def service(workers: Workers, forget: bool = False) -> FastAPI:
    """The page and what it asks for. Pictures are kept in memory, unless all but the last are to be
    forgotten."""
    app = FastAPI(title="Pictures")
    library: list[Picture] = []

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(Path(__file__).with_name("page.html"))

    @app.post("/pictures")
    async def add(request: Request, name: str) -> dict[str, Any]:
        """Look at the picture in the body, and keep it."""
        content = await request.body()
        try:
            found = await workers.look(content)
        except OSError:  # Pillow's for what is no picture
            raise HTTPException(415, f"{name} is no picture that Pillow reads") from None
        if forget:
            library.clear()
        library.append(Picture(name, content, found))
        return _shown(len(library) - 1)

    @app.get("/pictures")
    def all_pictures() -> list[dict[str, Any]]:
        return [_shown(i) for i in range(len(library))]

    @app.get("/pictures/{number}")
    def picture(number: int) -> Response:
        if not 0 <= number < len(library):
            raise HTTPException(404, f"there are {len(library)} pictures")
        return Response(library[number].content, media_type="image/*")

    @app.get("/search")
    async def search(words: str) -> list[dict[str, Any]]:
        """Pictures whose text has the words, then the others, the most similar first."""
        if not library:
            return []
        alike = np.array([p.found["vector"] for p in library]) @ np.array(await workers.say(words))
        read = [words.lower() in " ".join(line[1] for line in p.found["lines"]).lower()
                for p in library]
        order = sorted(range(len(library)), key=lambda i: (not read[i], -alike[i]))
        return [{**_shown(i), "alike": float(alike[i]), "read": read[i]} for i in order]

    def _shown(number: int) -> dict[str, Any]:
        name, _, found = library[number]
        return {"number": number, "name": name, "size": found["size"], "faces": found["faces"],
                "lines": found["lines"]}

    return app


def clip(folder: str | None) -> str:
    """The folder of CLIP's encoders. Without one, one is made and kept."""
    if folder is not None:
        return folder
    made = Path(tempfile.gettempdir(), "kompute-dml-clip")
    if not (made / "textual" / "model.onnx").exists():
        print(f"making CLIP's encoders with random weights in {made}: search finds text only")
        pictures.make(made)
    return str(made)


def main(arguments: list[str] | None = None) -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", help="CLIP's encoders, as in Immich's folders")
    parser.add_argument("--adapter", action="append",
                        help="a device to use, may be repeated; cpu is ONNX Runtime's")
    parser.add_argument("--ray", action="store_true", help="let Ray Serve hold the processes")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--forget", action="store_true",
                        help="keep the last picture only, as benchmarks/service.py needs it")
    options = parser.parse_args(arguments)
    adapters = options.adapter or [device.uuid for device in dml.list_devices()]
    start = on_ray if options.ray else Processes
    folder = clip(options.folder)
    print(f"opening the models on {' and '.join(adapters)}", flush=True)
    app = service(start(folder, adapters), options.forget)
    print(f"open http://127.0.0.1:{options.port}/ in a browser; Ctrl-C ends it", flush=True)
    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
