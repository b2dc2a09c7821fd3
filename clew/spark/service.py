"""The engine service: an engine behind an Arrow Flight endpoint, for groups of operators in other processes.

It serves one pipeline, and keeps nothing: what it forgets when it dies is the turns in flight, which are asked for
again.
"""

import hmac
import ipaddress
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from clew.errors import ClewError, EngineLost, SetupFailed
from clew.runtime.engine import Engine, Job
from clew.spark.exchange import Exchange
from clew.spark.turns import Turn, Turns
from clew.spark.wire import (
    BEAT,
    BEAT_EVERY,
    BEGUN,
    CODE,
    GIVEN_BACK,
    HELLO,
    OUTCOME,
    PING,
    TOKEN,
    VERSION,
    Request,
    StreamRequest,
    packed_error,
    unpack,
    versions,
)

_LOG = logging.getLogger(__name__)
#: Turns that run at once, unless somebody says otherwise.
AT_ONCE = 32


@dataclass(frozen=True)
class Listening:
    """Where a service listens: loopback alone, unless it has a certificate."""

    host: str = "127.0.0.1"
    port: int = 0
    #: Files with a certificate and its key.
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if not self.tls and not _is_loopback(self.host):
            raise SetupFailed(
                f"an engine on {self.host} is reached from other machines, and without TLS who listens on the way can "
                "read its token, and then have any code run",
                "give it a certificate with --tls-cert and --tls-key, or let it listen on 127.0.0.1",
            )

    @property
    def tls(self) -> bool:
        return self.certificate is not None

    def url(self, port: int) -> str:
        """Return where callers find a service that got this port."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        return f"grpc{'+tls' if self.tls else ''}://{_bracketed(host)}:{port}"

    @property
    def location(self) -> str:
        return f"grpc{'+tls' if self.tls else ''}://{_bracketed(self.host)}:{self.port}"

    @property
    def certificates(self) -> list[tuple[bytes, bytes]] | None:
        if self.certificate is None or self.key is None:
            return None
        try:
            return [(Path(self.certificate).read_bytes(), Path(self.key).read_bytes())]
        except OSError as error:
            raise SetupFailed(
                f"{error.filename} cannot be read ({error.strerror})", "give --tls-cert and --tls-key files in PEM form"
            ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Served:
    """What a service is started with, besides its engine."""

    #: The fingerprint of the code that it serves.
    code: str
    token: str
    listening: Listening = field(default_factory=Listening)
    #: The id of the Spark application, where there is one.
    application: str = ""
    #: Seconds without a call after which it may end, which callers are told, so that they call before.
    idle: float | None = None
    at_once: int = AT_ONCE


class EngineService(flight.FlightServerBase):  # type: ignore[misc]
    """Takes turns and streaming queries, and has the engine run them."""

    def __init__(self, engine: Engine, served: Served, cancel: Callable[[Job], None] = lambda job: None) -> None:
        self._engine = engine
        self._served = served
        self._turns = Turns(engine, served.at_once, cancel)
        self._streams = 0
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._called = time.monotonic()
        try:
            super().__init__(
                served.listening.location,
                tls_certificates=served.listening.certificates,
                middleware={"caller": _Doorkeeper(served.token, self._touch)},
            )
        except (pa.ArrowException, OSError) as error:
            raise SetupFailed(
                f"no engine can listen on {served.listening.location}: {str(error).splitlines()[0]}",
                "give it another --listen HOST:PORT, or PORT 0 for any that is free; and with TLS, a certificate and "
                "its key in PEM form",
            ) from error

    @property
    def url(self) -> str:
        """Where callers find it."""
        return self._served.listening.url(self.port)

    def quiet_for(self) -> float:
        """Return for how many seconds nobody has called, with nothing left to run; 0 while something runs."""
        with self._lock:
            return 0.0 if self._streams or self._turns.running else time.monotonic() - self._called

    def end(self, seconds: float) -> None:
        """Take nothing new, let the turns in flight end within some seconds, and stop."""
        self._ending.set()
        self._turns.drain(seconds)
        self.shutdown()
        self._turns.close()

    def _touch(self) -> None:
        with self._lock:
            self._called = time.monotonic()

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answer `hello` or `ping`."""
        self._refuse_others(context)
        if action.type == HELLO:
            return iter([json.dumps(self._hello()).encode()])
        if action.type == PING:
            return iter([b"{}"])
        raise NotImplementedError(action.type)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Run a turn, or a streaming query for as long as the caller holds the line."""
        self._refuse_others(context)
        if self._ending.is_set():
            raise flight.FlightUnavailableError(f"the engine at {self.url} ends")
        try:
            request = unpack(descriptor.command)
            if isinstance(request, Request):
                self._turn(context, request, reader, writer)
            else:
                self._stream(context, request, reader, writer)
        except Exception as error:
            _LOG.exception("what was asked could not be done")
            raise _refusal(
                f"the engine at {self.url} cannot do what is asked of it: {type(error).__name__}: {error}",
                "see that both sides have the same packages, and start them from the same files",
            ) from error
        self._touch()

    def _stream(self, context: Any, request: StreamRequest, reader: Any, writer: Any) -> None:
        with self._lock:
            self._streams += 1
        exchange = Exchange(self._engine, request, reader, writer, self._turns.beside, partial(self._is_over, context))
        try:
            self._turns.refuse_stale(request.job)
            exchange.run()
            if self._ending.is_set():
                _tell(writer, request.job, EngineLost("the engine ends, and its streaming queries with it"))
        except Exception as error:
            _tell(writer, request.job, error)
        finally:
            exchange.hang_up()
            with self._lock:
                self._streams -= 1

    def _is_over(self, context: Any) -> bool:
        """Say whether a caller is gone, or the service ends."""
        return self._ending.is_set() or bool(context.is_cancelled())

    def _hello(self) -> Mapping[str, Any]:
        served = self._served
        return {
            **versions(), "pid": os.getpid(), "application": served.application, "code": served.code,
            "parallelism": self._engine.parallelism, "idle": served.idle,
        }  # fmt: skip

    def _turn(self, context: Any, request: Request, reader: Any, writer: Any) -> None:
        try:
            turn = self._turns.submit(request)
        except ClewError as error:
            writer.write_metadata(OUTCOME + packed_error(request.job.operator, error))
            return
        try:
            for message in self._awaited(context, turn):
                writer.write_metadata(message)
                if message == BEGUN:
                    # Not before the caller knows: if this is the end of the service, he must not take it for another's.
                    reader.read_chunk()
                    turn.go.set()
        except (StopIteration, pa.ArrowException, OSError):
            # The caller has gone, and will ask anew.
            pass
        finally:
            if turn.outcome is None:
                self._turns.give_up(turn)

    def _awaited(self, context: Any, turn: Turn) -> Iterator[bytes]:
        """Yield the messages of a turn until its outcome."""
        told = False
        while turn.outcome is None and not turn.given_up and not context.is_cancelled():
            if turn.changed.wait(BEAT_EVERY):
                turn.changed.clear()
            if turn.begun and not told:
                told = True
                yield BEGUN
            elif turn.outcome is None:
                yield BEAT
        yield GIVEN_BACK if turn.outcome is None else OUTCOME + turn.outcome

    def _refuse_others(self, context: Any) -> None:
        """Refuse callers with other code or another Clew: what they send may not mean the same here."""
        caller = context.get_middleware("caller")
        own = versions()["clew"]
        if caller.version != own:
            raise _refusal(
                f"the engine at {self.url} is Clew {own}, and Clew {caller.version or 'of no version'} asks it",
                "install the same version on both sides",
            )
        if caller.code != self._served.code:
            raise _refusal(
                f"the engine at {self.url} serves the code {self._served.code}, and {caller.code or 'none'} was asked "
                "for",
                "start both from the same files",
            )


def _tell(writer: Any, job: Job, error: Exception) -> None:
    # Who has gone hears nothing.
    with suppress(pa.ArrowException, OSError):
        writer.write_metadata(packed_error(job.operator, error))


def _refusal(what: str, cure: str) -> Exception:
    refused: Exception = flight.FlightServerError(what, json.dumps([what, cure]).encode())
    return refused


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """What a caller says of itself."""

    def __init__(self, version: str, code: str) -> None:
        self.version = version
        self.code = code


class _Doorkeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets nobody in without the token."""

    def __init__(self, token: str, touch: Callable[[], None]) -> None:
        self._expected = f"Bearer {token}".encode()
        self._touch = touch

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Caller:
        if not hmac.compare_digest(_first(headers, TOKEN).encode(), self._expected):
            raise flight.FlightUnauthenticatedError("this engine wants its token")
        self._touch()
        return _Caller(_first(headers, VERSION), _first(headers, CODE))


def _first(headers: Mapping[str, list[Any]], name: str) -> str:
    found = headers.get(name) or [""]
    return found[0] if isinstance(found[0], str) else found[0].decode(errors="replace")
