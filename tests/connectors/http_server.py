"""A real HTTP server on loopback that honours idempotency keys, and misbehaves as it is told to."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Page:
    """A fixed answer."""

    body: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """What the server holds, what it was asked, and how it shall misbehave.

    `writes` says what becomes of the next writes, one word each: `lose` applies and closes without an answer, `drop`
    closes without applying, `hang` applies and never answers, a Page answers without applying, `fine` is fine.
    """

    port: int = 0
    honours_keys: bool = True
    writes: list[str | Page] = field(default_factory=list)
    #: Answers to GET, by path; a list is used up from its front.
    pages: dict[str, Page | list[Page]] = field(default_factory=dict)
    #: What was applied, in this order: the key and the records.
    applied: list[tuple[str, list[Any]]] = field(default_factory=list)
    #: Every request: method, path with query, headers.
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    bodies: list[bytes] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/records") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def records(self) -> list[Any]:
        """Return all records, in the order in which they were applied."""
        with self.lock:
            return [record for _, records in self.applied for record in records]

    def count(self, method: str, path: str = "") -> int:
        with self.lock:
            return sum(1 for asked, at, _ in self.asked if asked == method and at.startswith(path))

    def written(self) -> list[str]:
        with self.lock:
            return [key for key, _ in self.applied]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def do_OPTIONS(self) -> None:
        self._noted()
        self._answer(Page("", 405))

    def do_GET(self) -> None:
        self._noted()
        state, path = self.state, urlsplit(self.path).path
        with state.lock:
            page = state.pages.get(path)
            if isinstance(page, list):
                page = page.pop(0)
        if page is not None:
            self._answer(page)
        elif path == "/records":
            self._answer(Page(json.dumps(state.records())))
        elif path == "/rates":
            self._answer(Page(json.dumps({"asked": self.path, "answer": state.count("GET", "/rates")})))
        else:
            self._answer(Page("nothing here", 200 if path.rpartition("/")[2] in state.written() else 404))

    def do_POST(self) -> None:
        self._noted()
        state, body = self.state, self.rfile.read(int(self.headers["Content-Length"]))
        with state.lock:
            act = state.writes.pop(0) if state.writes else "fine"
            state.happened[act if isinstance(act, str) else str(act.status)] += 1
            state.bodies.append(body)
            if act in ("fine", "lose", "hang"):
                self._apply(body)
        if isinstance(act, Page):
            self._answer(act)
        elif act == "fine":
            self._answer(Page('{"ok": true}', 201))
        else:
            if act == "hang":
                state.closing.wait(60)
            self.close_connection = True

    do_PUT = do_PATCH = do_POST

    def _apply(self, body: bytes) -> None:
        state, key = self.state, self.headers["Idempotency-Key"]
        if state.honours_keys and any(known == key for known, _ in state.applied):
            return
        lines = "ndjson" in self.headers["Content-Type"]
        state.applied.append((key, [json.loads(line) for line in body.splitlines()] if lines else json.loads(body)))

    def _noted(self) -> None:
        with self.state.lock:
            self.state.asked.append((self.command, self.path, dict(self.headers)))

    def _answer(self, page: Page) -> None:
        body = page.body.encode()
        self.send_response(page.status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, page.headers.get(name, value))
        for name in page.headers.keys() - {"Content-Type"}:
            self.send_header(name, page.headers[name])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that went away is what tests do."""


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server in a thread."""
    state = Server()
    listener = _Listener(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    state.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        listener.shutdown()
        listener.server_close()
        thread.join()
