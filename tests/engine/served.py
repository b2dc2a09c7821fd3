"""Services in this process and in others, and engines that do what a test tells them."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew import Pipeline, generator
from clew.pipeline.graph import Graph
from clew.runtime.bodies import BodyPlace
from clew.runtime.engine import InlineEngine, Job, Ran
from clew.runtime.task import ReadTask
from clew.serve import address_at
from clew.spark.client import RemoteEngine
from clew.spark.service import EngineService, Served

CODE, TOKEN = "numbers@1", "a token"


def numbers() -> Graph:
    """A pipeline that can be run without Spark."""
    pipeline = Pipeline("numbers")
    source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 20), max_turn_events=5)
    source.map(lambda record: {"n": 2 * record["n"]}, name="doubled", deterministic=True)
    return pipeline.graph()


def job(turn: int = 1, *, operator: str = "source", incarnation: int = 1, attempt: int = 0) -> Job:
    return Job(operator, incarnation, turn, f"{operator}.out#{turn}", 60.0, attempt=attempt)


def read(count: int = 1) -> list[ReadTask]:
    """Tasks that a source of `numbers` can perform."""
    return [ReadTask(BodyPlace(None, "source", 1, 1), None, ((0, count),), {})]


def piece(number: int) -> list[ReadTask]:
    """A task that reads one event of such a source."""
    return [ReadTask(BodyPlace(None, "source", 1, 1), None, ((number, number + 1),), {})]


class Told(InlineEngine):
    """Does with each turn what a test says; a job's `about` says which is which."""

    parallelism = 3

    def __init__(self, compute: Callable[[Job], Any] = lambda job: [job.turn]) -> None:
        super().__init__(numbers())
        self.compute = compute
        self.cancelled: list[Job] = []

    def map(self, job: Job, *given: Any) -> Ran:
        return Ran(self.compute(job), 0.0)

    frames = observe = write = map  # type: ignore[assignment]

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job)


@contextmanager
def served(engine: Any, **settings: Any) -> Iterator[EngineService]:
    """A service in this process."""
    service = EngineService(
        engine, Served(**{"code": CODE, "token": TOKEN, **settings}), getattr(engine, "cancel", lambda job: None)
    )
    try:
        yield service
    finally:
        service.end(5.0)


@contextmanager
def asked(service: EngineService, **settings: Any) -> Iterator[RemoteEngine]:
    """A client of it."""
    given = {"code": CODE, "patience": 20.0, **settings}
    token = given.pop("token", TOKEN)
    engine = RemoteEngine(lambda: (service.url, token), **given)
    try:
        yield engine
    finally:
        engine.close()


class InThread:
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def ended(self) -> "InThread":
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self


def until(ask: Callable[[], Any]) -> Any:
    """Ask until it is so."""
    deadline = time.monotonic() + 30
    while not (answer := ask()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return answer


class Command:
    """`clew engine` in a process of its own, with its files in a directory."""

    def __init__(self, file: str, place: Path, *words: str, engine: str = "inline", **environment: str) -> None:
        self.address_file, self.token_file = place / "address", place / "token"
        self.address_file.unlink(missing_ok=True)
        files = ["--address-file", str(self.address_file), "--token-file", str(self.token_file)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clew.app.main", "engine", file, "--engine", engine, *files, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip

    def serves(self) -> "Command":
        """Wait until it serves."""
        until(lambda: self.address_file.exists() or self.process.poll() is not None)
        if self.process.poll() is not None:
            raise AssertionError(self.process.communicate())
        return self

    @property
    def address(self) -> Callable[[], tuple[str, str]]:
        return address_at(str(self.address_file), str(self.token_file))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def told_to_end(self) -> tuple[int, str, str]:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def __enter__(self) -> "Command":
        return self.serves()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self.process.communicate()


class Relay:
    """A line to a service that can be cut, as if the service had died."""

    def __init__(self, service: EngineService) -> None:
        self._target = service.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, taken: socket.socket, given: socket.socket) -> None:
        with suppress(OSError):
            while data := taken.recv(1 << 16):
                given.sendall(data)
        for end in (taken, given):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all lines; new ones can be made."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut all lines, and let nobody in."""
        # A thread that waits to accept would let one more in.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
