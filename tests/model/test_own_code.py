"""A user's own code may fail when a run is judged, or give something else than it gave: it is named then."""

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Operator, Pipeline, Sink, WriteAction
from clew.connectors import generator, sqlite
from clew.pipeline.contracts import Piece, Plan, RecordsHeld, Replayable
from clew.pipeline.operators import Context, InputSet
from clew.pipeline.windows import Header
from tests.model.runs import Finished, explained, finished, only


class Now:
    """What somebody's own code does in the judge's hands, and how often its function was called."""

    broken = ""
    calls = 0
    kept: tuple[int, ...] = ()


@pytest.fixture(autouse=True)
def _whole() -> None:
    Now.broken, Now.calls, Now.kept = "", 0, ()


@dataclass(frozen=True)
class Numbers(Replayable):
    """A source of one's own, of three records."""

    def describe(self) -> str:
        return "numbers"

    def plan(self, snapshot: Any, offset: Any, events: int) -> Plan:
        if Now.broken == "plan":
            raise ConnectionError("the service is away")
        return Plan(([offset or 0, 3],), last=True)

    def read(self, snapshot: Any, piece: Any) -> Iterator[Piece]:
        if Now.broken == "read":
            sys.exit(0)
        for number in range(*piece):
            yield Piece(pa.table({"n": [number]}), number + 1)


class Own(Operator):
    """Takes each event by itself."""

    def initial(self) -> dict[str, Any]:
        if Now.broken == "initial":
            raise FileNotFoundError("settings.json")
        return {}

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        return [event.number]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return list(opened)

    def generate(self, input_set: InputSet, context: Context) -> Any:
        if Now.broken == "generate":
            sys.exit(0)
        return input_set.table()


class Writing(Own):
    """Writes what it takes, with how often it was called."""

    def generate(self, input_set: InputSet, context: Context) -> Any:
        Now.calls += 1
        if Now.broken != "fewer" or Now.calls <= 4:
            noise = Now.calls if Now.broken in ("noise", "fewer") else 0
            context.write("other" if Now.broken == "elsewhere" else "w", pa.table({"n": [noise]}))


def passed_on(directory: Path) -> Finished:
    pipeline = Pipeline("own")
    own = pipeline.general("own", Own(), pipeline.source("numbers", Numbers()), deterministic=True)
    pipeline.sink(own, sqlite(directory / "sink.db", table="t"), name="sink")
    return finished(pipeline, directory)


def written(directory: Path) -> Finished:
    pipeline = Pipeline("own")
    numbers = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 3))
    to = {"w": sqlite(directory / "w.db", table="w")}
    pipeline.general("own", Writing(), numbers, writes=to, outputs=(), deterministic=True)
    return finished(pipeline, directory)


@pytest.mark.parametrize(
    ("broken", "operator", "fact"),
    [
        ("plan", "numbers", "cannot be read: its plan() fails: ConnectionError: the service is away"),
        ("read", "numbers", "cannot be read: SystemExit: 0"),
        ("initial", "own", "its initial() fails: FileNotFoundError: settings.json"),
    ],
)
def test_what_fails_before_anything_is_computed_leaves_it_undecided(
    broken: str, operator: str, fact: str, tmp_path: Path
) -> None:
    made = passed_on(tmp_path)
    assert explained(made.verify())
    Now.broken = broken
    found = only(made.verify(), "undecided")
    assert found.operator == operator
    assert found.fact.endswith(fact)


def test_a_function_that_ends_the_process_ends_not_the_judge(tmp_path: Path) -> None:
    made = passed_on(tmp_path)
    Now.broken = "generate"
    assert only(made.verify()).fact == "its Output Set cannot be computed again: SystemExit: 0"


@pytest.mark.parametrize("broken", ["noise", "fewer"])
def test_an_operator_that_is_declared_deterministic_and_writes_something_else_is_named(
    broken: str, tmp_path: Path
) -> None:
    Now.broken = broken
    found = only(written(tmp_path).verify())
    assert (found.operator, found.input_set, found.found) == ("own", 1, "n 1" if broken == "noise" else "1")
    assert found.fact == (
        "is declared deterministic and is not: it writes something else each time, in write action own.w#1"
    )


def test_a_function_that_writes_something_else_since_it_was_changed_is_not_called_so(tmp_path: Path) -> None:
    Now.broken = "noise"
    made = written(tmp_path)
    Now.broken = ""
    assert only(made.verify()).fact == "write action own.w#1 is not what the function writes"


def test_a_function_that_writes_where_nothing_is_declared_is_named(tmp_path: Path) -> None:
    made = written(tmp_path)
    assert explained(made.verify())
    Now.broken = "elsewhere"
    found = only(made.verify())
    assert (found.operator, found.event, found.input_set) == ("own", "numbers.out#1", 1)
    assert found.fact == "its function writes to other, which is not declared"


@dataclass(frozen=True)
class Listed(RecordsHeld):
    """Frozen, and yet without a hash."""

    columns: list[str] = field(default_factory=list)

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        yield pa.table({"n": list(Now.kept)}, schema=schema)


@dataclass(frozen=True)
class Keeping(Sink):
    idempotent = True

    def describe(self) -> str:
        return "keeping"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        for table in tables:
            Now.kept += tuple(table["n"].to_pylist())

    def holds(self) -> RecordsHeld:
        return Listed(["n"])


def test_what_a_sink_holds_may_have_no_hash(tmp_path: Path) -> None:
    pipeline = Pipeline("own")
    pipeline.sink(pipeline.source("numbers", Numbers()), Keeping(), name="sink")
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    Now.kept += (9,)
    assert only(made.verify()).fact == "what sink.out writes to holds 1 record that nobody wrote"
