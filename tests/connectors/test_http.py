"""The HTTP connector by itself, against a real server on loopback."""

import logging
import multiprocessing
import pickle
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pyarrow as pa
import pytest

from clew import faultpoint
from clew.connectors import http
from clew.connectors.httprequests import LONGEST_WAIT
from clew.errors import AnswerRefused, GraphError, SinkFailed, SourceFailed
from clew.faultpoint import CrashInjected
from clew.pipeline.contracts import WriteAction
from tests.connectors.http_server import Page, Server, serving

ACTION = WriteAction("run1", "totals", "out", 7, incarnation=3)
TABLE = pa.table({"n": [1, 2], "s": ["é", None]})
ROWS = [{"n": 1, "s": "é"}, {"n": 2, "s": None}]


@pytest.fixture
def server():
    with serving() as running:
        yield running


def write(sink, action: WriteAction = ACTION, *tables: pa.Table) -> None:
    sink.write(action, iter(tables or (TABLE,)), TABLE.schema)


def refused(sink) -> SinkFailed:
    with pytest.raises(SinkFailed) as failed:
        write(sink)
    return failed.value


# Writing.


@pytest.mark.parametrize("format", ["json", "jsonl"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_one_write_action_is_one_request_under_its_name(server: Server, format: str, method: str):
    sink = http(server.url(), format=format, method=method, headers={"X-Team": "sales"})
    sink.validate_target()
    write(sink, ACTION, TABLE, TABLE)
    assert server.applied == [("run1-totals-out-000000007", ROWS * 2)]
    made, path, headers = server.asked[-1]
    assert (made, path, headers["X-Team"]) == (method, "/records", "sales")
    assert headers["Content-Type"] == {"json": "application/json", "jsonl": "application/x-ndjson"}[format]


def test_the_key_is_the_same_for_every_incarnation_and_a_repeat_changes_nothing(server: Server):
    for incarnation in (3, 4):
        write(http(server.url()), replace(ACTION, incarnation=incarnation))
    assert server.count("POST") == 2
    assert server.records() == ROWS


def test_the_header_of_the_key_and_the_content_type_can_be_chosen(server: Server):
    sink = http(server.url(), idempotency_header="X-Request-Id", headers={"content-type": "text/json"})
    write(sink)
    headers = {name.lower(): value for name, value in server.asked[-1][2].items()}
    assert headers["x-request-id"] == ACTION.name
    assert headers["content-type"] == "text/json"


@pytest.mark.parametrize(("format", "body"), [("json", b"[]"), ("jsonl", b"")])
def test_an_empty_write_is_a_request_without_records(server: Server, format: str, body: bytes):
    sink = http(server.url(), format=format, check=server.url("/writes/{key}"))
    sink.write(ACTION, iter([]), pa.schema([]))
    assert server.bodies == [body]
    assert sink.applied(ACTION)
    assert server.records() == []


def test_a_check_says_what_was_applied(server: Server):
    sink = http(server.url(), check=server.url("/writes/{key}"))
    assert not sink.applied(ACTION)
    write(sink)
    assert sink.applied(ACTION)
    assert not sink.applied(replace(ACTION, number=8))


def test_a_name_that_no_header_holds_is_still_one_key(server: Server):
    odd = replace(ACTION, connection="a ü/?")
    sink = http(server.url(), check=server.url("/check?of={key}"))
    write(sink, odd)
    server.pages["/check"] = Page("", 200)
    assert sink.applied(odd)
    (key,) = server.written()
    assert key == "run1-totals-a%20%C3%BC%2F%3F-000000007"
    assert server.asked[-1][1] == "/check?of=run1-totals-a%2520%25C3%25BC%252F%253F-000000007"


def test_a_sink_is_idempotent_and_checkable_with_an_address_to_check_at():
    plain, checked = http("http://h/x"), http("http://h/x", check="http://h/{key}")
    assert (plain.transactional, plain.idempotent, plain.checkable) == (False, True, False)
    assert (checked.transactional, checked.idempotent, checked.checkable) == (False, True, True)
    assert plain.holds() is None
    # How long one waits for it changes nothing of what it holds.
    list_of = "http://h/list"
    assert http(list_of, holds=list_of, timeout=1).holds() == http(list_of, holds=list_of).holds()


@pytest.mark.parametrize("fault", ["lose", "hang"])
def test_a_lost_answer_can_be_tried_again_and_is_applied_once(server: Server, fault: str):
    server.writes = [fault]
    failed = refused(http(server.url(), timeout=0.3))
    assert server.happened[fault] == 1
    assert failed.again == 0
    assert str(failed).startswith(f"sink http {server.url()}: write {ACTION.name} got no answer (")
    assert "expected 2xx; check that the server runs" in str(failed)
    assert str(failed).endswith("run again: the write is repeated under the same key")
    write(http(server.url()))
    assert server.records() == ROWS
    assert server.count("POST") == 2


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503])
def test_a_server_that_is_busy_is_asked_again_when_it_wants(server: Server, status: int):
    server.writes = [Page("busy", status, {"Retry-After": "7"})]
    failed = refused(http(server.url()))
    assert failed.again == 7
    assert f"got {status} " in str(failed)
    assert str(failed).endswith("run again: the write is repeated under the same key")


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        ("86400", LONGEST_WAIT, LONGEST_WAIT),
        (format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True), LONGEST_WAIT, LONGEST_WAIT),
        (format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), 0, 0),
        ("soon", 0, 0),
        ("-3", 0, 0),
    ],
    # Named, because a moment is another one in each process that collects the tests.
    ids=["a day", "tomorrow", "yesterday", "soon", "below zero"],
)
def test_no_server_is_waited_for_longer_than_the_bound(server: Server, asked: str, least: float, most: float):
    server.writes = [Page("busy", 503, {"Retry-After": asked})]
    again = refused(http(server.url())).again
    assert again is not None
    assert least <= again <= most


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        (400, "check the request against what the server takes"),
        (401, "check the credentials"),
        (403, "what they allow"),
        (404, "check the URL"),
        (405, "check the URL and method="),
        (413, "let the server take larger requests"),
        (415, "check format="),
        (422, "check the request"),
    ],
)
def test_what_the_server_refuses_is_final_and_says_why(server: Server, status: int, cure: str):
    server.writes = [Page("no\n such   thing " + "x" * 500, status)]
    failed = refused(http(server.url()))
    assert failed.again is None
    assert f"write {ACTION.name} got {status} " in str(failed)
    assert ": no such thing xxx" in str(failed)
    assert "..., expected 2xx; " in str(failed)
    assert cure in str(failed)
    assert str(failed).endswith("run again: the run goes on with this write")
    assert len(str(failed)) < 500


def test_a_redirect_is_not_followed(server: Server):
    with serving() as other:
        server.writes = [Page("", 307, {"Location": other.url("/elsewhere")})]
        server.pages["/rates"] = Page("", 302, {"Location": other.url("/rates")})
        failed = refused(http(server.url(), headers={"X-Key": "very-secret"}))
        with pytest.raises(SourceFailed, match=r"302 .*name the address that it leads to"):
            http(server.url("")).read("/rates")
        assert other.asked == []
    assert f"307 Temporary Redirect to {other.url('/elsewhere')}" in str(failed)
    assert "name the address that it leads to, which is not followed" in str(failed)
    assert failed.again is None


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (pa.table({"f": [float("nan")]}), "column f: Out of range float"),
        (pa.table({"f": [1.0], "b": [b"\x00"]}), "column b: bytes has no form in JSON"),
        (pa.table({"d": pa.array([1], pa.duration("us"))}), "column d: timedelta has no form"),
        (pa.table({"t": pa.array([2**62], pa.timestamp("us"))}), "column t has a time outside of the years 1 to 9999"),
    ],
)
def test_what_has_no_form_in_json_is_refused_before_anything_is_sent(server: Server, table: pa.Table, what: str):
    with pytest.raises(
        SinkFailed, match=rf"write {ACTION.name} cannot be put into JSON .*{what}.*; make what"
    ) as failed:
        http(server.url()).write(ACTION, iter([table]), table.schema)
    assert failed.value.again is None
    assert server.asked == []


def test_a_check_that_fails_says_so(server: Server):
    sink = http(server.url(), check=server.url("/writes/{key}"))
    server.pages[f"/writes/{ACTION.name}"] = [Page("", 503, {"Retry-After": "2"}), Page("who are you", 401)]
    with pytest.raises(SinkFailed, match=r"the check of write .* got 503 .*, expected 2xx or 404; .*same key") as busy:
        sink.applied(ACTION)
    with pytest.raises(
        SinkFailed, match=r"got 401 Unauthorized: who are you, expected 2xx or 404; .*credentials"
    ) as no:
        sink.applied(ACTION)
    assert (busy.value.again, no.value.again) == (2, None)


def test_a_server_that_is_not_there_is_found_before_the_run():
    with serving() as gone:
        sink = http(gone.url())
    with pytest.raises(
        SinkFailed, match=r"it gave no answer \(ConnectError.*\), expected any; check that the server runs"
    ):
        sink.validate_target()
    assert refused(sink).again == 0


def test_a_crash_after_the_answer_leaves_the_write_once(server: Server):
    sink = http(server.url())
    (fault,) = faultpoint.arm("sink-after-commit@totals:raise")
    with pytest.raises(CrashInjected):
        write(sink)
    assert fault.fired
    write(sink)
    assert server.records() == ROWS


# Declaring.


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"url": "ftp://secret/x"}, "http cannot read the URL, which is not shown here; write https://host/path"),
        ({"url": "http://h:port"}, "cannot read the URL"),
        ({"url": "http:///x"}, "cannot read the URL"),
        ({"url": "http://h/a b"}, "cannot read the URL"),
        ({"check": "h/{key}"}, "cannot read the URL"),
        ({"holds": "h"}, "cannot read the URL"),
        ({"check": "http://h/x"}, r"check= has no \{key\}"),
        ({"method": "GET"}, "cannot write by 'GET' as 'json'; there are the methods POST"),
        ({"format": "xml"}, "as 'xml'; there are the methods .* and formats json, jsonl"),
        ({"timeout": 0}, "cannot have an answer within 0 s; give timeout= more than 0"),
        ({"headers": {"X-Name": "ü"}}, "cannot send the header 'X-Name': .* plain ASCII; encode it"),
        ({"headers": {"X Name": "u"}}, "cannot send the header 'X Name'"),
        ({"headers": {"X-Name": "u\r\nX-More: 1"}}, "cannot send the header 'X-Name'"),
        ({"idempotency_header": ""}, "cannot send the header ''"),
        ({"headers": {"idempotency-key": "1"}}, "headers= has Idempotency-Key, which is for the key of each write"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_stands(settings: dict, what: str):
    with pytest.raises(GraphError, match=what) as wrong:
        http(**{"url": "http://127.0.0.1/x", **settings})
    assert wrong.value.location.startswith(__file__)
    assert "secret" not in str(wrong.value)


# Secrets.

SECRETS = ["ursula", "p@ssw0rd", "p%40ssw0rd", "tok-12345", "header-secret", "dXJzdWxhOnBAc3N3MHJk", "bare-word"]


def test_secrets_reach_the_server_and_nobody_else(server: Server, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    place = f"http://ursula:p%40ssw0rd@127.0.0.1:{server.port}"
    sink = http(
        f"{place}/records?token=tok-12345&bare-word", headers={"X-Auth": "Bearer header-secret"},
        check=f"{place}/writes/{{key}}?token=tok-12345&bare-word", holds=f"{place}/list?token=tok-12345&bare-word",
    )  # fmt: skip
    sink = pickle.loads(pickle.dumps(sink))
    echo = " and ".join(["you sent", *SECRETS])
    server.writes = [Page(echo, 400), Page(echo, 503), Page("", 302, {"Location": "/x?token=tok-12345"}), "lose"]
    errors: list[Exception] = [refused(sink) for _ in range(4)]
    server.pages |= {f"/writes/{ACTION.name}": Page(echo, 401), "/list": Page(echo, 403), "/records/r": Page(echo, 404)}
    for ask in (
        lambda: sink.applied(ACTION), lambda: list(sink.holds().tables(TABLE.schema)), lambda: sink.read("r?day=1"),
    ):  # fmt: skip
        with pytest.raises((SinkFailed, SourceFailed)) as failed:
            ask()
        errors.append(failed.value)
    for method, path, headers in server.asked:
        assert "token=tok-12345" in path, method
        assert headers["Authorization"] == "Basic dXJzdWxhOnBAc3N3MHJk"
        assert headers["X-Auth"] == "Bearer header-secret"
    assert len(server.asked) == len(errors) == 7
    shown = [sink.describe(), repr(sink), str(sink), repr(sink.holds()), caplog.text, *map(repr, errors)]
    shown += [text for error in errors for text in (str(error), str(pickle.loads(pickle.dumps(error))))]
    for text in shown:
        assert not [secret for secret in SECRETS if secret in text], text
    assert sink.describe() == f"http http://***@127.0.0.1:{server.port}/records?token=***&***"
    assert "HTTP Request: POST" in caplog.text, "the library's own log was to be looked at"
    assert "day=1" in str(errors[-1])


def test_no_cookie_is_kept(server: Server):
    server.pages["/a"] = Page("{}", headers={"Set-Cookie": "session=1; Path=/"})
    for _ in range(2):
        http(server.url("")).read("/a")
    assert all("Cookie" not in headers for _, _, headers in server.asked)


# Reading.


def test_a_read_is_a_get_below_the_url(server: Server):
    rates = http(server.url("/v1/?zone=eu"), headers={"X-Team": "sales"})
    server.pages["/v1/rates"] = Page('[{"day": "2024-01-01", "rate": 1.5}, {"day": "2024-01-02", "more": [1]}]')
    assert rates.read("/rates?day=2024-01-01").to_pylist() == [
        {"day": "2024-01-01", "rate": 1.5, "more": None},
        {"day": "2024-01-02", "rate": None, "more": [1]},
    ]
    method, path, headers = server.asked[-1]
    assert (method, path) == ("GET", "/v1/rates?zone=eu&day=2024-01-01")
    assert headers["X-Team"] == "sales"
    assert headers["Accept"].startswith("application/json")


@pytest.mark.parametrize(
    ("body", "type", "rows"),
    [
        ('{"a": 1}', "application/json; charset=utf-8", [{"a": 1}]),
        ("[]", "application/json", []),
        ('{"a": "ü"}\n\n{"a": "\u2028"}\n', "application/x-ndjson", [{"a": "ü"}, {"a": "\u2028"}]),
        ('\ufeff{"a": 1}', "text/plain", [{"a": 1}]),
    ],
)
def test_an_object_an_array_or_lines_are_records(server: Server, body: str, type: str, rows: list):
    server.pages["/x"] = Page(body, headers={"Content-Type": type})
    assert http(server.url("/x")).read("").to_pylist() == rows


def test_a_schema_gives_exact_types_and_leaves_other_fields_out(server: Server):
    schema = pa.schema([("rate", pa.decimal128(38, 20)), ("at", pa.timestamp("us", "UTC")), ("gone", pa.int32())])
    server.pages["/x"] = Page('{"rate": 1.00000000000000000001, "at": "2024-01-01T00:00:00Z", "other": 1}')
    table = http(server.url(), schema=schema)
    server.pages["/records/x"] = server.pages["/x"]
    found = table.read("x")
    assert found.schema == schema
    assert str(found["rate"][0]) == "1.00000000000000000001"
    assert found["gone"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("body", "schema", "what"),
    [
        ("", None, "Expecting value"),
        ("<html>", None, "Expecting value"),
        ("[1]", None, "it holds int where a record was expected"),
        ('"text"', None, "it holds str where a record was expected"),
        ('{"a": NaN}', None, "NaN is no JSON"),
        ('[{"a": 1}, {"a": "x"}]', None, "column a has no one type"),
        ('{"a": 1.5}', pa.schema([("a", pa.int64())]), r"column a holds Decimal\('1.5'\), which is no exact int64"),
        (
            '{"a": {"b": true}}',
            pa.schema([("a", pa.struct([("b", pa.float64())]))]),
            r"column a holds \{.*\}, which is no exact struct",
        ),
        ('{"a": "xy"}', pa.schema([("a", pa.list_(pa.string()))]), "column a holds 'xy', which is no exact list"),
    ],
)
def test_an_answer_that_is_no_records_is_refused_with_its_cure(server: Server, body: str, schema, what: str):
    server.pages["/x"] = Page(body)
    cure = "ask for an object, an array of objects or one per line, and declare their types with schema="
    match = rf"source http .*: the answer to GET x is not records in JSON \({what}.*\); {cure}$"
    with pytest.raises(AnswerRefused, match=match):
        http(server.url(""), schema=schema).read("x")


@pytest.mark.parametrize(
    "action", ["http://127.0.0.1:1/x", "//127.0.0.1:1/x", "../admin", "/a/%2e%2e/%2E./admin", "file:/etc/passwd"]
)
def test_an_action_cannot_lead_away(server: Server, action: str):
    with pytest.raises(AnswerRefused, match="leads away from there; give a path and a query below the URL"):
        http(server.url("/v1")).read(action)
    assert server.asked == []


@pytest.mark.parametrize("action", ["/x?name=C#", "/x?name=a\nb", "/x\x00"])
def test_nothing_of_an_action_is_cut_off_in_silence(server: Server, action: str):
    with pytest.raises(AnswerRefused, match=r"holds what no address can hold; .*urllib\.parse\.quote"):
        http(server.url("/v1")).read(action)
    assert server.asked == []


def test_an_action_is_sent_as_it_was_meant(server: Server):
    server.pages["/v1/x y"] = server.pages["/v1/x%20y"] = Page("{}")
    http(server.url("/v1")).read("/x y?name=ü&name=C%23")
    assert server.asked[-1][1] == "/v1/x%20y?name=%C3%BC&name=C%23"


def test_an_action_that_looks_like_a_user_stays_a_path(server: Server):
    with pytest.raises(
        SourceFailed, match="got 404 Not Found: nothing here, expected 2xx; check the URL, and run again"
    ):
        http(server.url("")).read("@127.0.0.1:1/x")
    assert [path for _, path, _ in server.asked] == ["/@127.0.0.1:1/x"]


def test_a_read_is_tried_again_where_that_may_help(server: Server):
    server.pages["/x"] = [Page("", 503, {"Retry-After": "0"}), Page("", 500), Page('{"a": 1}'), *[Page("", 502)] * 3]
    assert http(server.url("")).read("x").to_pylist() == [{"a": 1}]
    with pytest.raises(SourceFailed, match=r"GET x got 502 Bad Gateway, expected 2xx; check that the server runs"):
        http(server.url("")).read("x")
    assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("status", "blamed"),
    [(400, True), (403, True), (404, True), (410, True), (422, True), (301, False), (401, False), (407, False)],
)
def test_an_answer_for_good_is_about_what_was_asked_for_or_about_who_asks(server: Server, status: int, blamed: bool):
    server.pages["/x"] = Page("no", status)
    with pytest.raises(SourceFailed) as failed:
        http(server.url("")).read("x")
    assert isinstance(failed.value, AnswerRefused) == blamed
    assert len(server.asked) == 1


def test_a_read_without_an_answer_says_so():
    with serving() as gone:
        rates = http(gone.url(""))
    with pytest.raises(SourceFailed, match=r"GET x got no answer \(.*\), expected 2xx; check that the server runs"):
        rates.read("x")


def test_requests_go_on_in_a_fork_and_from_many_threads(server: Server):
    server.pages["/x"] = Page('{"a": 1}')
    rates = http(server.url(""))
    rates.read("x")
    child = multiprocessing.get_context("fork").Process(target=rates.read, args=("x",))
    child.start()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(rates.read("x").num_rows)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in (*threads, child):
        thread.join(60)
    assert child.exitcode == 0
    assert found == [1] * 8
    assert len(server.asked) == 10


# What is there.


def test_what_the_server_holds_can_be_read(server: Server):
    sink = http(server.url(), holds=server.url())
    write(sink)
    held = pickle.loads(pickle.dumps(sink.holds()))
    assert held == sink.holds()
    assert hash(held) == hash(sink.holds())
    assert [row for table in held.tables(TABLE.schema) for row in table.to_pylist()] == ROWS
