"""`clew run --accept` and `clew check --log`: what has changed since a run began."""

import json
from pathlib import Path

import pytest

from tests.app.pipelines import call, write

SHOP = """
import pyarrow as pa
from clew import Count, Pipeline, generator, sqlite

pipeline = Pipeline("shop")
orders = pipeline.source("orders", generator(lambda i: pa.table({"n": [i]}), EVENTS), max_turn_events=1, group="all")

@pipeline.operator(orders, name="sums", window=Count(SIZE), max_turn_events=1, group="all", attempts=1)
def total(table: pa.Table) -> pa.Table:
    if 8 in table["n"].to_pylist() and BROKEN:
        raise ValueError("broken")
    return pa.table({"count": [len(table)]})

pipeline.sink("sums", sqlite("sink.db", table="sums"), group="all")
"""
LOG = "sqlite:///log.db"


def shop(place: Path, size: int, broken: bool = False, events: int = 12) -> str:
    text = SHOP.replace("SIZE", str(size)).replace("BROKEN", str(broken)).replace("EVENTS", str(events))
    return write(place, "changing.py", text)


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave a run that failed on its third Input Set of three: two events wait in it."""
    monkeypatch.chdir(tmp_path)
    result = call("run", shop(tmp_path, 3, broken=True), "--engine", "inline", "--log", LOG)
    assert result.exit_code == 1, result.output
    return tmp_path


WINDOW = (
    'sums: its window changed from {"total": "Count(size=3, by=None)"} to {"total": "Count(size=4, by=None)"}, and '
    "1 Input Set with orders.out#7..8 on in is open; --accept sums assigns these events anew under the new window"
)


def test_a_change_that_costs_something_is_refused_until_it_is_accepted(cut_off: Path) -> None:
    file = shop(cut_off, 4)
    refused = call("run", file, "--engine", "inline", "--log", LOG)
    assert refused.exit_code == 1
    assert f"\n  {WINDOW}\n" in refused.stderr
    assert "resuming" not in refused.stderr
    accepted = call("run", file, "--engine", "inline", "--log", LOG, "--accept", "sums")
    assert accepted.exit_code == 0, accepted.output
    assert "on in is open; as accepted, this run assigns these events anew under the new window" in accepted.stderr
    assert "changed: sums: its code changed; what it made stays as it is" in accepted.stderr


def test_check_tells_what_has_changed_without_running(cut_off: Path) -> None:
    told = call("check", shop(cut_off, 4), "--log", LOG)
    assert told.exit_code == 1
    assert f"refused: {WINDOW}" in told.stderr
    assert "changed: sums: its code changed" in told.stdout
    told = call("check", shop(cut_off, 3), "--log", LOG)
    assert told.exit_code == 0
    answer = json.loads(call("check", shop(cut_off, 3), "--log", LOG, "--json").stdout)
    assert answer["changes"] == [
        {
            "operator": "sums", "fact": "sums: its code changed; what it made stays as it is, and the new code makes "
            "what is not made yet", "compatible": True, "accept": "", "cure": "", "part": "code",
        }
    ]  # fmt: skip
    told = call("check", shop(cut_off, 3, broken=True), "--log", LOG)
    assert "nothing that the run in sqlite:///log.db depends on has changed" in told.stdout


def test_check_says_so_when_there_is_no_such_log(cut_off: Path) -> None:
    told = call("check", shop(cut_off, 3), "--log", "sqlite:///other.db")
    assert told.exit_code == 1
    assert "pipeline shop has no log at sqlite:///other.db; name the log of a run, or leave out --log" in told.stderr
    assert not (cut_off / "other.db").exists()


def test_an_operator_that_nobody_has_cannot_be_accepted(cut_off: Path) -> None:
    result = call("run", shop(cut_off, 4), "--engine", "inline", "--log", LOG, "--accept", "sum")
    assert result.exit_code == 1
    assert "--accept sum names no operator; there are all, orders, sums, sums_sink" in result.stderr


SCHEMA = """
import pyarrow as pa
from clew import Pipeline, generator, sqlite

pipeline = Pipeline("shop")
orders = pipeline.source("orders", generator(lambda i: pa.table({"n": [i]}), 5))

def price(order):
    if order["n"] == 3 and BROKEN:
        raise ValueError("broken")
    return {"n": order["n"], "price": PRICE}

orders.map(price, name="priced", attempts=1 DECLARED).sink(sqlite("sink.db", table="priced"))
"""


def priced(place: Path, price: str, declared: str = "", broken: bool = False) -> str:
    schema = f", schema=pa.schema([('n', pa.int64()), {declared}])" if declared else ""
    text = SCHEMA.replace("PRICE", price).replace("DECLARED", schema).replace("BROKEN", str(broken))
    return write(place, "schema.py", text)


@pytest.mark.parametrize(
    ("declared", "fact"),
    [
        ("('price', pa.float64())", "column price is declared as double, but the run has fixed it to int64"),
        ("('price', pa.int64()), ('w', pa.int8())", "column w is declared as int8, but the run has fixed it to none"),
        ("('cost', pa.int64())", "column cost is declared as int64, but the run has fixed it to none"),
    ],
)  # fmt: skip
def test_a_schema_that_is_declared_otherwise_than_the_run_has_fixed_it_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, fact: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("--engine", "inline", "--log", LOG)
    assert call("run", priced(tmp_path, "1", broken=True), *arguments).exit_code == 1
    file = priced(tmp_path, "1", declared)
    told = (
        f"priced.out: {fact}, and a port keeps its schema; this cannot be accepted: put the declaration back, or give "
        "the operator a new name"
    )
    checked = call("check", file, "--log", LOG)
    assert checked.exit_code == 1
    assert f"refused: {told}" in checked.stderr
    assert told in call("run", file, *arguments, "--accept", "all").stderr
    same = priced(tmp_path, "1", "('price', pa.int64())")
    assert call("check", same, "--log", LOG).exit_code == 0
    assert call("run", same, *arguments).exit_code == 0


def test_a_function_that_gives_other_columns_than_the_run_has_fixed_is_told_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "added.py", ADDED.replace("ADDED", "index > 1"))
    failed = call("run", file, "--engine", "inline", "--log", LOG)
    assert failed.exit_code == 1
    assert (
        "doubled.out produced column at as string, but this port is fixed to a schema without it since its first "
        "event; cast it in the function, or declare schema= and start with --fresh" in failed.stderr
    )
    declared = write(tmp_path, "added.py", ADDED.replace("ADDED", "index > 1").replace("orders)", f"orders, {AT})"))
    assert "refused: doubled.out: column at is declared as string" in call("check", declared, "--log", LOG).stderr
    fresh = call("run", declared, "--engine", "inline", "--log", LOG, "--fresh")
    assert "doubled.out produced column at as missing, but this port is declared with string" in fresh.stderr


AT = "schema=pa.schema([('n', pa.int64()), ('at', pa.string())])"
ADDED = """
import pyarrow as pa
from clew import Pipeline, generator, sqlite

pipeline = Pipeline("shop")
orders = pipeline.source("orders", generator(lambda i: pa.table({"n": [i]}), 3))

@pipeline.operator(orders)
def doubled(table: pa.Table) -> pa.Table:
    index = table["n"][0].as_py()
    return table.append_column("at", pa.array(["now"])) if ADDED else table

pipeline.sink(doubled, sqlite("sink.db", table="doubled"))
"""


def test_a_run_that_is_refused_does_not_say_that_it_begins(cut_off: Path) -> None:
    """Neither what it resumes, nor what was accepted: nothing of it happens."""
    write(cut_off, "taken", "")
    text = (cut_off / "changing.py").read_text().replace("Count(3)", "Count(4)").replace("sink.db", "taken/sink.db")
    refused = call("run", write(cut_off, "changing.py", text), "--engine", "inline", "--log", LOG, "--accept", "sums")
    assert refused.exit_code == 1
    assert "resuming" not in refused.stderr
    assert "accepted" not in refused.stderr
    other = write(cut_off, "other.py", text.replace('Pipeline("shop")', 'Pipeline("other")'))
    foreign = call("run", other, "--engine", "inline", "--log", LOG)
    assert foreign.exit_code == 1
    assert [line for line in foreign.stderr.splitlines() if "run of" in line or "resuming" in line] == []
