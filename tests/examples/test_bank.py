"""The bank of the payment flows: who is killed while it asks leaves nothing on the bank's own terminal."""

import importlib.util
import json
import socket
import struct
import threading
import urllib.request
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from tests.docs.pages import ROOT


def bank() -> Any:
    spec = importlib.util.spec_from_file_location("bank", ROOT / "examples" / "payments" / "bank.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_client_that_is_killed_leaves_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), bank().Handler) as server:
        # Closing waits for the threads of requests only where they are no daemons.
        server.daemon_threads = False
        threading.Thread(target=server.serve_forever).start()
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"GET /accounts/17 HTTP/1.1\r\nHost: bank\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            # As the system closes the connections of a process that was killed with something unread.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/statistics") as answer:
            assert json.load(answer) == {"requests": 0, "repeats": 0}
        server.shutdown()
    assert capsys.readouterr().err == ""
