"""A bank for the payment flows: `python bank.py` serves it until it is stopped.

`python bank.py statistics` asks the one that is open what happened there.

    GET  /accounts/ID     what the bank knows of an account
    POST /charges         charges accounts; honours the header Idempotency-Key
    GET  /charges         all charges that were applied
    GET  /applied/KEY     200 if the request with this key was applied, 404 if it was not
    GET  /statistics      how many requests to charge came, and how many of them were repeats

It listens on 127.0.0.1, on the port that BANK_PORT says. What it holds is in memory, and gone when it stops.
"""

import json
import os
import sys
import threading
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = int(os.environ.get("BANK_PORT", "8765"))


class Ledger:
    """What was charged, by the key of the request."""

    def __init__(self) -> None:
        self.applied: dict[str, list[Any]] = {}
        self.requests = 0
        # Requests come in threads; a repeat may come while the first is still in work.
        self._lock = threading.Lock()

    def charge(self, key: str, charges: list[Any]) -> None:
        """Apply a request unless its key was applied before."""
        with self._lock:
            self.requests += 1
            self.applied.setdefault(key, charges)

    def charges(self) -> list[Any]:
        with self._lock:
            return [charge for charges in self.applied.values() for charge in charges]

    def statistics(self) -> dict[str, int]:
        with self._lock:
            return {"requests": self.requests, "repeats": self.requests - len(self.applied)}


def account(number: int) -> dict[str, Any]:
    """Return what the bank knows of an account; every fifth is blocked."""
    return {"country": ("NO", "GR", "IE")[number % 3], "blocked": number % 5 == 0, "limit": 20_000 + 1000 * number}


class Handler(BaseHTTPRequestHandler):
    """Answers requests."""

    protocol_version = "HTTP/1.1"
    ledger = Ledger()

    def handle(self) -> None:
        """Answer until there are no more requests; who is killed between two of them is no mistake of the bank's."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        _, what, *rest = self.path.split("/")
        if what == "accounts" and rest and rest[0].isdigit():
            self._answer(200, account(int(rest[0])))
        elif what == "charges":
            self._answer(200, self.ledger.charges())
        elif what == "applied" and rest:
            self._answer(200 if rest[0] in self.ledger.applied else 404, {})
        elif what == "statistics":
            self._answer(200, self.ledger.statistics())
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        charges = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.ledger.charge(self.headers["Idempotency-Key"], charges)
        self._answer(201, {})

    def do_OPTIONS(self) -> None:
        self._answer(200, {})

    def log_message(self, *_: Any) -> None:
        """Say nothing of single requests."""

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def statistics() -> str:
    """Ask the bank that is open."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/statistics") as answer:
        return " ".join(f"{name}: {number}" for name, number in json.load(answer).items())


if __name__ == "__main__":
    if sys.argv[1:] == ["statistics"]:
        sys.exit(print(statistics()))
    with ThreadingHTTPServer(("127.0.0.1", PORT), Handler) as server:
        print(f"the bank is open on port {PORT}", flush=True)
        server.serve_forever()
