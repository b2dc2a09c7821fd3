"""HTTP servers: a sink whose writes carry an idempotency key, and a connection that operators read on the side."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from urllib.parse import quote

import pyarrow as pa

from clew.connectors.cures import before_the_sink
from clew.connectors.httprequests import Answer, Endpoint, Headers, check_headers
from clew.connectors.jsonvalues import decoded, encoded
from clew.errors import AnswerRefused, GraphError, SinkFailed, SourceFailed
from clew.faultpoint import fault_point
from clew.pipeline.contracts import Connection, RecordsHeld, Sink, WriteAction
from clew.pipeline.location import caller

_METHODS = ("POST", "PUT", "PATCH")
_TYPES = {"json": "application/json", "jsonl": "application/x-ndjson"}
#: How often a read is tried: nobody has seen anything of it yet, so it is repeated right here.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Http(Connection, Sink):
    """A place on an HTTP server; a pipeline declares it as a sink or as a connection to read from.

    As a sink, each write action is one request, and its name is the idempotency key: the same on every repeat, so a
    server that honours the key applies it once. It is not fenced.
    """

    idempotent = True

    endpoint: Endpoint
    method: str
    format: str
    idempotency_header: str
    check: Endpoint | None
    listing: Endpoint | None
    declared: pa.Schema | None
    #: Whether there is an address to check at.
    checkable: bool

    def describe(self) -> str:
        return f"http {self.endpoint.describe()}"

    def whereabouts(self) -> str:
        return f"{self.method} {self.describe()} as {self.format}, named in {self.idempotency_header}"

    def holds(self) -> "HttpHeld | None":
        return None if self.listing is None else HttpHeld(self.listing)

    def validate_target(self) -> None:
        """Raise SinkFailed when nobody answers; what the answer says does not matter."""
        answer = self.endpoint.ask("OPTIONS")
        if not answer.status:
            raise self._failed(f"it gave {answer.said}, expected any", _LOOK)

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        headers = ((self.idempotency_header, _key(action)), ("Content-Type", _TYPES[self.format]))
        answer = self.endpoint.ask(self.method, headers, self._body(action, tables, schema))
        if not answer.done:
            raise self._refused(f"write {action.name}", answer, "2xx")
        fault_point("sink-after-commit", action.operator)

    def applied(self, action: WriteAction) -> bool:
        assert self.check is not None, "only a sink with check= is checkable"
        answer = self.check.filled(_key(action)).ask("GET")
        if not answer.done and answer.status != 404:
            raise self._refused(f"the check of write {action.name}", answer, "2xx or 404")
        return answer.done

    def schema(self) -> pa.Schema | None:
        return self.declared

    def read(self, action: str) -> pa.Table:
        return _table(self.endpoint, action, self.declared)

    def _body(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> bytes:
        try:
            records = list(encoded(tables, schema))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            what = f"write {action.name} cannot be put into JSON ({error})"
            raise self._failed(what, before_the_sink("make what it holds text or numbers"), None) from error
        text = f"[{','.join(records)}]" if self.format == "json" else "".join(f"{record}\n" for record in records)
        return text.encode()

    def _refused(self, what: str, answer: Answer, expected: str) -> SinkFailed:
        fact = f"{what} got {answer.said}, expected {expected}"
        if answer.temporary:
            return self._failed(fact, f"{_LOOK}, and run again: the write is repeated under the same key", answer.wait)
        return self._failed(fact, f"{_cure(answer)}, and run again: the run goes on with this write", None)

    def _failed(self, what: str, cure: str, again: float | None = 0.0) -> SinkFailed:
        return SinkFailed(self.describe(), what, cure, again)


@dataclass(frozen=True)
class HttpHeld(RecordsHeld):
    """What a server says it holds, all in one answer."""

    listing: Endpoint

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        yield _table(self.listing, "", schema)


def http(
    url: str,
    *,
    method: str = "POST",
    format: str = "json",
    headers: Mapping[str, str] | None = None,
    idempotency_header: str = "Idempotency-Key",
    check: str | None = None,
    holds: str | None = None,
    schema: pa.Schema | None = None,
    timeout: float = 30.0,
) -> Http:
    """Name a place on an HTTP server, to write to or to read from on the side.

    To write, each write action is one request with all its records, as a JSON array (`json`) or one object per line
    (`jsonl`), and with its name as the idempotency key. `check` is a URL with `{key}` in it that answers 2xx if the
    write of that key was applied, and 404 if it was not. `holds` is a URL that lists all records, for `clew verify`.

    To read, an action is a path and a query under `url`; the answer is a JSON object, an array of them, or one per
    line, with the types of `schema` or, without, of its values.

    `headers` go with every request, also to `check` and `holds`. After `timeout` seconds of silence an answer counts
    as lost.
    """
    if method not in _METHODS or format not in _TYPES:
        known = f"methods {', '.join(_METHODS)} and formats {', '.join(_TYPES)}"
        raise GraphError(f"http cannot write by {method!r} as {format!r}; there are the {known}", caller())
    if idempotency_header.lower() in map(str.lower, headers or {}):
        raise GraphError(
            f"headers= has {idempotency_header}, which is for the key of each write; leave it out", caller()
        )
    if check is not None and "{key}" not in check:
        raise GraphError("the URL given as check= has no {key}, which stands for the write to ask about", caller())

    def endpoint(place: str) -> Endpoint:
        return Endpoint.of(place, headers or {}, timeout)

    try:
        check_headers({**(headers or {}), idempotency_header: ""})
        return Http(
            endpoint(url), method, format, idempotency_header, None if check is None else endpoint(check),
            None if holds is None else endpoint(holds), schema, checkable=check is not None,
        )  # fmt: skip
    except ValueError as error:
        raise GraphError(f"http {error}", caller()) from None


_LOOK = "check that the server runs and that the URL is right"


def _key(action: WriteAction) -> str:
    # Plain names stay as they are; a header holds nothing else.
    return quote(action.name, safe="")


def _cure(answer: Answer) -> str:
    if 300 <= answer.status < 400:
        return "name the address that it leads to, which is not followed"
    cures = {
        401: "check the credentials in headers= or in the URL",
        403: "check the credentials in headers= or in the URL, and what they allow",
        404: "check the URL",
        405: "check the URL and method=",
        413: "let the server take larger requests (max_turn_events= makes later ones smaller)",
        415: "check format=",
    }
    return cures.get(answer.status, "check the request against what the server takes")


def _table(endpoint: Endpoint, action: str, schema: pa.Schema | None) -> pa.Table:
    """Ask for records; raises SourceFailed, and AnswerRefused where it is what was asked for that gives none."""
    answer = _patiently(endpoint, action)
    asked = f"GET {action}" if action else "GET"
    if not answer.done:
        cure = f"{_LOOK}, and run again" if answer.temporary else f"{_cure(answer)}, and run again"
        blamed = AnswerRefused if answer.refuses else SourceFailed
        raise blamed(f"http {endpoint.describe()}", f"{asked} got {answer.said}, expected 2xx", cure)
    lines = any(sign in answer.type for sign in ("ndjson", "jsonl", "jsonlines"))
    try:
        return decoded(answer.content, lines=lines, schema=schema)
    except ValueError as error:
        raise AnswerRefused(
            f"http {endpoint.describe()}", f"the answer to {asked} is not records in JSON ({error})",
            "ask for an object, an array of objects or one per line, and declare their types with schema=",
        ) from None  # fmt: skip


def _patiently(endpoint: Endpoint, action: str) -> Answer:
    try:
        place = endpoint.below(action)
    except ValueError as error:
        raise AnswerRefused(
            f"http {endpoint.describe()}",
            f"GET {action!r} {error}",
            "give a path and a query below the URL, with urllib.parse.quote around what comes from data",
        ) from None
    accept: Headers = (("Accept", "application/json, application/x-ndjson"),)
    for attempt in count(1):
        answer = place.ask("GET", accept)
        if not answer.temporary or attempt == _ATTEMPTS:
            break
        time.sleep(max(answer.wait, 0.1 * attempt))
    return answer
