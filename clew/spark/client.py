"""The engine service as an engine, for processes that have no Spark: turns are sent there, and sent again when it dies.

A turn that was in flight when the service died is sent again to the next one. One that was in flight at two deaths is
sent alone; if the service dies of that too, the turn is to blame, and counts as failed.
"""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import flight

from clew.errors import EngineFailed, EngineLost, SetupFailed
from clew.runtime.bodies import BodyPlace
from clew.runtime.engine import Job, Ran
from clew.runtime.gate import Gate
from clew.runtime.task import GenerateTask, Task, WriteTask
from clew.spark.remote_query import RemoteQuery
from clew.spark.wire import (
    BEGUN,
    CODE,
    GIVEN_BACK,
    GO,
    HELLO,
    OUTCOME,
    PING,
    TOKEN,
    VERSION,
    Raised,
    Request,
    StreamRequest,
    pack,
    unpack,
    versions,
    why,
)

_LOG = logging.getLogger(__name__)

#: Deaths under a turn after which it is sent alone.
_DEATHS = 2
#: Seconds before a service that was not reached is tried again, at first and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0
#: Seconds that a service may take to say who it is.
_HELLO_SECONDS = 20.0
#: A service that is silent for so many milliseconds while something is asked of it counts as dead; it has something to
#: say every few seconds. Channels of their own: one that failed before would make the next one wait.
_OPTIONS = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.use_local_subchannel_pool", 1),
]

#: Where a service is now: its URL and its token.
Address = Callable[[], tuple[str, str]]


class _Unreached(Exception):
    """Nobody has begun with what was asked."""


class _Died(Exception):
    """The service died under a turn."""


@dataclass(frozen=True)
class _Line:
    """A service that was reached, and what it said of itself."""

    url: str
    client: Any
    options: Any
    hello: dict[str, Any]


class RemoteEngine:
    """An engine in another process, which may die and come back, at another address too.

    `address` is asked at each connection; `code` is the fingerprint of the code that both sides have; `roots` is the
    root certificate of a service with TLS, in PEM form. A service that is not there is waited for, for `patience`
    seconds, or until `stop` is set.
    """

    def __init__(
        self,
        address: Address,
        code: str,
        *,
        roots: bytes | None = None,
        patience: float = 300.0,
        stop: threading.Event | None = None,
    ) -> None:
        self._address = address
        self._code = code
        self._roots = roots
        self._patience = patience
        self._attempts = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        #: Set where nobody waits for a turn any more.
        self._stop = stop or threading.Event()
        self._line: _Line | None = None
        self._queries: dict[str, RemoteQuery] = {}
        hello = self._reach().hello
        self.parallelism: int = hello["parallelism"]
        if hello["idle"] is not None:
            threading.Thread(target=self._stay, args=(hello["idle"] / 3,), name="engine-ping", daemon=True).start()

    @property
    def hello(self) -> dict[str, Any]:
        """What the service says of itself: versions, pid, Spark application, code, parallelism."""
        return self._reach().hello

    def map(self, job: Job, tasks: Sequence[Task]) -> Ran:
        return self._turn(Request("map", job, (list(tasks),)))

    def frames(self, job: Job, task: GenerateTask) -> Ran:
        return self._turn(Request("frames", job, (task,)))

    def observe(self, job: Job, place: BodyPlace, rows: int) -> Ran:
        return self._turn(Request("observe", job, (place, rows)))

    def write(self, job: Job, task: WriteTask) -> Ran:
        return self._turn(Request("write", job, (task,)))

    def stream(self, job: Job, checkpoint: str, gate: Gate) -> RemoteQuery:
        """Start a streaming query in place of the one that its source had before."""
        self._stop_query(job.operator)
        line = self._reach()
        request = StreamRequest(replace(job, attempt=next(self._attempts)), checkpoint)
        try:
            query = RemoteQuery(job.operator, line.client, line.options, request, gate)
        except (pa.ArrowException, OSError, StopIteration) as error:
            self._hang_up(line)
            raise EngineLost(
                f"the engine at {line.url} was lost while it started the streaming query of {job.operator}: "
                f"{why(error)}"
            ) from error
        with self._lock:
            self._queries[job.operator] = query
        return query

    def _stop_query(self, operator: str) -> None:
        with self._lock:
            query = self._queries.pop(operator, None)
        if query is not None:
            query.stop()

    def close(self) -> None:
        self._closed.set()
        for operator in list(self._queries):
            self._stop_query(operator)
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            with suppress(pa.ArrowException, OSError):
                line.client.close()

    # Turns.

    def _turn(self, request: Request) -> Ran:
        """Have a turn run, by as many services as it takes."""
        deaths, since, wait = 0, time.monotonic(), _FIRST_WAIT
        while True:
            alone = deaths >= _DEATHS
            line = self._reach(since)
            job = replace(request.job, attempt=next(self._attempts))
            asked = time.monotonic()
            try:
                return _asked(line, replace(request, job=job, alone=alone))
            except _Unreached as error:
                self._hang_up(line)
                if time.monotonic() - asked > _LONGEST_WAIT:
                    # It was there, and the turn waited for its place.
                    since, wait = time.monotonic(), _FIRST_WAIT
                self._wait(line.url, since, wait, str(error))
                wait = min(2 * wait, _LONGEST_WAIT)
            except _Died as died:
                self._hang_up(line)
                deaths, since, wait = deaths + 1, time.monotonic(), _FIRST_WAIT
                told = {"operator": job.operator, "turn": job.turn, "deaths": deaths, "why": str(died)}
                _LOG.warning("the engine died under a turn", extra=told)
                if alone:
                    raise EngineFailed(
                        job.operator,
                        f"the engine died {deaths} times under turn {job.turn} ({job.about}), at last with nothing "
                        "else beside it",
                    ) from died

    # The line.

    def _reach(self, since: float | None = None) -> _Line:
        """Return a line to the service; waits where it does not answer."""
        since, wait = time.monotonic() if since is None else since, _FIRST_WAIT
        while True:
            url = "an unknown place"
            try:
                with self._lock:
                    if self._line is not None:
                        return self._line
                    url, token = self._address()
                    self._line = self._greeted(url, token)
                    self.parallelism = self._line.hello["parallelism"]
                    return self._line
            except _Unreached as error:
                reason = str(error)
            except OSError as error:
                reason = f"its address is not known ({error})"
            self._wait(url, since, wait, reason)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _wait(self, url: str, since: float, seconds: float, reason: str) -> None:
        """Wait before the service is tried again; raises EngineLost when that was long enough."""
        waited = time.monotonic() - since
        if waited + seconds > self._patience or self._closed.is_set() or self._stop.is_set():
            raise EngineLost(
                f"no engine has answered at {url} for {waited:.0f} s: {reason}; start it with `clew engine FILE`, or "
                "mend its address, and run again"
            )
        if seconds == _FIRST_WAIT:
            _LOG.warning("the engine does not answer, and is waited for", extra={"url": url, "why": reason})
        self._stop.wait(seconds)

    def _greeted(self, url: str, token: str) -> _Line:
        headers = {TOKEN: f"Bearer {token}", VERSION: versions()["clew"], CODE: self._code}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            client = flight.FlightClient(url, tls_root_certs=self._roots, generic_options=_OPTIONS)
            soon = flight.FlightCallOptions(timeout=_HELLO_SECONDS, headers=encoded)
            (answer,) = client.do_action(flight.Action(HELLO, b""), soon)
        except flight.FlightUnauthenticatedError as error:
            raise SetupFailed(
                f"the engine at {url} does not know this token",
                "give both sides the same --token-file",
            ) from error
        except flight.FlightServerError as error:
            raise _refused(error) from error
        except (pa.ArrowException, OSError) as error:
            raise _Unreached(why(error)) from error
        return _Line(url, client, flight.FlightCallOptions(headers=encoded), json.loads(answer.body.to_pybytes()))

    def _hang_up(self, line: _Line) -> None:
        """Let go of a line that is down; others may have a new one by now."""
        with self._lock:
            if self._line is line:
                self._line = None

    def _stay(self, every: float) -> None:
        """Let the service know that somebody is there, so that it does not end."""
        while not self._closed.wait(every):
            with self._lock:
                line = self._line
            # Who is not there will be missed by the next turn.
            with suppress(pa.ArrowException, OSError):
                if line is not None:
                    list(line.client.do_action(flight.Action(PING, b""), line.options))


def _asked(line: _Line, request: Request) -> Ran:
    """Ask for a turn once; raises _Unreached if it was not begun, and _Died if it was and its outcome did not come."""
    begun, writer = False, None
    try:
        writer, reader = line.client.do_exchange(flight.FlightDescriptor.for_command(pack(request)), line.options)
        while (kind := (body := reader.read_chunk().app_metadata.to_pybytes())[:1]) != OUTCOME:
            if kind == BEGUN:
                begun = True
                writer.write_metadata(GO)
            elif kind == GIVEN_BACK:
                raise _Unreached(f"the engine at {line.url} ends")
    except flight.FlightServerError as error:
        raise _refused(error) from error
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise (_Died if begun else _Unreached)(why(error)) from error
    finally:
        # The service hangs up when it has said all; where it did not get that far, nobody wants to hear of it again.
        with suppress(pa.ArrowException, OSError):
            if writer is not None:
                writer.close()
    return _result(unpack(body[1:]))


def _result(outcome: Any) -> Ran:
    if isinstance(outcome, Raised):
        raise outcome.error
    assert isinstance(outcome, Ran)
    return outcome


def _refused(error: Any) -> SetupFailed:
    """Return what a service refused a caller for, in its own words."""
    what, cure = json.loads(error.extra_info)
    return SetupFailed(what, cure)
