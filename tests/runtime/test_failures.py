"""What the user's own code does wrong is shown to the user, and costs nothing that was committed."""

import pickle
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Context, Count, InputSet, Operator, Pipeline, Sink, WriteAction
from clew.connectors import files, generator
from clew.errors import (
    BodyDamaged,
    ClewError,
    GraphError,
    RunFinished,
    SchemaChanged,
    SinkFailed,
    TypeRefused,
    UserFunctionFailed,
)
from clew.faultpoint import arm
from clew.protocol.rows import Bodies
from clew.run import decide_quarantined, quarantine_of, run
from clew.runtime.bodies import load
from clew.supervisor.threads import Policy
from tests.simulation.outside import Transactional, World
from tests.spark.outside import rows


def _numbers(index: int) -> pa.Table:
    return pa.table({"n": [index]})


class _Deaf(Sink):
    """A sink that applies each write, and whose answer is lost the first time."""

    checkable = True

    def __init__(self) -> None:
        self.has: list[int] = []

    def describe(self) -> str:
        return "a deaf sink"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self.has.append(action.number)
        raise SinkFailed("deaf", "the answer was lost", "ask it")

    def applied(self, action: WriteAction) -> bool:
        return action.number in self.has


def test_a_write_whose_answer_was_lost_is_counted_once_it_is_found(tmp_path: Path) -> None:
    pipeline, sink = Pipeline("lost"), _Deaf()
    pipeline.source("numbers", generator(_numbers, 3), max_turn_events=1).sink(sink, name="deaf", max_turn_events=1)
    progress = run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline")
    row = progress.rows()["deaf"]
    assert sorted(sink.has) == [1, 2, 3]
    assert (row.writes, row.pending_writes) == (3, 0)


class _Poison:
    """A function that cannot bear one of its events, until it is mended."""

    def __init__(self, bad: int) -> None:
        self.bad: int | None = bad
        self.calls: list[list[int]] = []

    def pipeline(self, world: World, **settings: Any) -> Pipeline:
        pipeline = Pipeline("poison")
        source = pipeline.source("numbers", generator(_numbers, 20), max_turn_events=8)

        @pipeline.operator(source, max_turn_events=8, **settings)
        def picky(table: pa.Table) -> pa.Table:
            numbers = table["n"].to_pylist()
            self.calls.append(numbers)
            if self.bad in numbers:
                raise ValueError(f"cannot bear {self.bad}")
            return table

        pipeline.sink(picky, Transactional(world, "sink"))
        return pipeline


def test_a_function_that_raises_stops_the_run_with_operator_event_and_frames_and_resumes_once_mended(
    tmp_path: Path,
) -> None:
    world, poison = World(), _Poison(13)
    log = f"sqlite:///{tmp_path / 'log.db'}"
    with pytest.raises(UserFunctionFailed) as failed:
        run(poison.pipeline(world), log=log, engine="inline")
    assert failed.value.operator == "picky"
    assert failed.value.events == "numbers.out#14"
    assert (failed.value.kind, failed.value.message, failed.value.attempts) == ("ValueError", "cannot bear 13", 3)
    assert "raise ValueError" in failed.value.frames
    assert __file__ in failed.value.frames
    assert "clew/runtime" not in failed.value.frames
    assert poison.calls.count([13]) >= 3, "the culprit had its attempts alone"

    poison.bad, poison.calls = None, []
    run(poison.pipeline(world), log=log, engine="inline")
    assert poison.calls[0] == [13], "the run resumes at the event it stopped at: those before are committed"
    assert world.rows["sink"] == [(n,) for n in range(20)]


def test_a_function_that_fails_once_costs_an_attempt_and_nothing_else(tmp_path: Path) -> None:
    world, poison = World(), _Poison(13)
    pipeline = poison.pipeline(world)
    calls = iter([None, None])

    def once(table: pa.Table) -> pa.Table:
        if 13 in table["n"].to_pylist() and next(calls, "mended") is None:
            raise ConnectionError("for a moment")
        return table

    (spec,) = [spec for spec in pipeline._specs if spec.name == "picky"]
    object.__setattr__(spec.functions[0], "run", once)
    progress = run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline")
    assert progress.rows()["picky"].restarts == 0
    assert world.rows["sink"] == [(n,) for n in range(20)]


def test_a_window_whose_function_raises_at_the_flush_resumes_at_the_flush(tmp_path: Path) -> None:
    world, mended = World(), False
    log = f"sqlite:///{tmp_path / 'log.db'}"

    def declare() -> Pipeline:
        pipeline = Pipeline("flushed")
        source = pipeline.source("numbers", generator(_numbers, 7), max_turn_events=3)

        @pipeline.operator(source, window=Count(5), max_turn_events=3)
        def fives(table: pa.Table) -> pa.Table:
            if table.num_rows < 5 and not mended:
                raise ValueError("an incomplete window")
            return pa.table({"sum": [pc.sum(table["n"]).as_py()]})

        pipeline.sink(fives, Transactional(world, "sink"))
        return pipeline

    with pytest.raises(UserFunctionFailed, match="incomplete"):
        run(declare(), log=log, engine="inline")
    mended = True
    run(declare(), log=log, engine="inline")
    assert world.rows["sink"] == [(10,), (11,)]


def test_a_sink_that_stays_down_stops_the_run_after_its_attempts_and_the_writes_follow_later(tmp_path: Path) -> None:
    world = World(refused=frozenset({2, 3, 4}))
    log = f"sqlite:///{tmp_path / 'log.db'}"
    poison = _Poison(-1)
    with pytest.raises((UserFunctionFailed, SinkFailed), match="refused"):
        run(poison.pipeline(world), log=log, engine="inline", policy=Policy(0.01))
    run(poison.pipeline(world), log=log, engine="inline")
    assert world.rows["sink"] == [(n,) for n in range(20)]


def test_a_finished_log_is_final(tmp_path: Path) -> None:
    world, poison = World(), _Poison(-1)
    log = f"sqlite:///{tmp_path / 'log.db'}"
    run(poison.pipeline(world), log=log, engine="inline")
    with pytest.raises(RunFinished, match="--fresh"):
        run(poison.pipeline(world), log=log, engine="inline")
    assert world.rows["sink"] == [(n,) for n in range(20)]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"elsewhere": pa.table({"n": [1]})}, "wrong returned records for port 'elsewhere'; it has out"),
        ([{"n": 1}], "wrong returned dict on port out; return a pyarrow.Table, a list of them, or a dict by port"),
    ],
)
def test_what_a_function_must_not_return_is_named(tmp_path: Path, returned: Any, message: str) -> None:
    pipeline = Pipeline("returns")

    @pipeline.operator(pipeline.source("numbers", generator(_numbers, 2)))
    def wrong(table: pa.Table) -> pa.Table:
        return returned

    with pytest.raises(ClewError) as failed:
        run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline")
    assert message in str(failed.value)


class _Alone(Operator):
    """Each event is an Input Set of its own."""

    def assign(self, event: Any, state: dict[str, Any]) -> list[Any]:
        return [event.number]

    def ready(self, state: dict[str, Any], opened: Any) -> tuple[Any, ...]:
        return tuple(opened)


class _Asks(_Alone):
    def generate(self, input_set: InputSet, context: Context) -> pa.Table:
        return context.read("rates", "today")


def test_a_connection_that_is_not_declared_is_named_with_those_that_are(tmp_path: Path) -> None:
    pipeline = Pipeline("asks")
    pipeline.general("asks", _Asks(), pipeline.source("numbers", generator(_numbers, 2)))
    with pytest.raises(ClewError) as failed:
        run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline")
    assert "asks has no connection 'rates'; declare it in reads= (it has none)" in str(failed.value)


class _Pairs(_Alone):
    def initial(self) -> dict[str, Any]:
        return {"pair": (1, 2)}

    def generate(self, input_set: InputSet, context: Context) -> pa.Table:
        return input_set.table()


def test_a_state_that_would_not_come_back_from_the_log_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline("pairs")
    pipeline.general("pairs", _Pairs(), pipeline.source("numbers", generator(_numbers, 2)))
    with pytest.raises(GraphError, match=r"the global state of pairs is \{'pair': \(1, 2\)\}, which JSON would change"):
        run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline")


def test_a_body_that_was_damaged_is_not_taken_for_one(tmp_path: Path) -> None:
    bodies = Bodies((3, 3), (zlib.crc32(b"abc"), zlib.crc32(b"def")), data=b"abcdeX")
    with pytest.raises(BodyDamaged, match=r"the body at the log@3\+3 does not match its checksum; restore the file"):
        list(load(None, [bodies]))
    with pytest.raises(BodyDamaged, match=r"the body at .*/gone .*No such file"):
        list(load(str(tmp_path), [Bodies((3,), (0,), file="gone")]))


def crashed_once_listed(pipeline: Pipeline, log: str) -> None:
    """Run a pipeline until its source has listed what it will read, and has read nothing."""
    (fault,) = arm("after-action-complete@orders:raise")
    try:
        with pytest.raises(ClewError, match="failed 1 times without committing"):
            run(pipeline, log=log, engine="inline", policy=Policy(give_up_after=1))
    finally:
        arm()
    assert fault.fired


def test_a_listing_that_is_gone_from_the_log_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id\n1\n")
    pipeline = Pipeline("listed")
    pipeline.source("orders", files(tmp_path / "orders.csv"))
    log = f"sqlite:///{tmp_path / 'log.db'}"
    crashed_once_listed(pipeline, log)
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
        dropped = "count = NULL, size = NULL, lengths = NULL, checksums = NULL, file = NULL, start = NULL, data = NULL"
        assert connection.execute(f"UPDATE read_event SET {dropped}").rowcount == 1
    said = "^the stored listing of source orders is gone from the log; start a --fresh run$"
    with pytest.raises(ClewError, match=said):
        run(pipeline, log=log, engine="inline")


def test_a_schema_that_is_changed_once_the_files_are_listed_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id\n1\n")
    log = f"sqlite:///{tmp_path / 'log.db'}"

    def read_as(**given: Any) -> Pipeline:
        pipeline = Pipeline("listed")
        orders = pipeline.source("orders", files(tmp_path / "orders.csv", **given))
        pipeline.sink(orders, files(tmp_path / "out"), name="out")
        return pipeline

    crashed_once_listed(read_as(), log)
    with pytest.raises(ClewError, match=r"schema= is not what it was when the run began, .* put it back as it was"):
        run(read_as(schema=pa.schema([("id", pa.string())])), log=log, engine="inline")
    run(read_as(), log=log, engine="inline")
    assert [row["id"] for row in rows(tmp_path / "out")] == [1]


def nulls_first(**settings: Any) -> Pipeline:
    """A port whose first event has nothing but nulls in a column, in any way in which that can be."""
    pipeline = Pipeline("nulls")
    source = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 3))

    @pipeline.operator(source, **settings)
    def discounted(table: pa.Table) -> pa.Table:
        n = table["n"][0].as_py()
        return table.append_column("discount", pa.array([None if n == 0 else 1.5]))

    return pipeline


def test_a_first_event_that_does_not_tell_a_type_fixes_nothing(tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path}/log.db"
    with pytest.raises(TypeRefused) as refused:
        run(nulls_first(), log=log, engine="inline")
    assert str(refused.value) == (
        "operator discounted failed on numbers.out#1: column discount has type null: "
        "discounted.out has had nothing else there yet, and would be fixed to that for "
        "good; declare schema= for discounted, or cast it to the type that later values have"
    )
    declared = nulls_first(schema=pa.schema([("n", pa.int64()), ("discount", pa.float64())]))
    declared.sink("discounted", files(tmp_path / "out"))
    run(declared, log=log, engine="inline")
    assert [row["discount"] for row in rows(tmp_path / "out")] == [None, 1.5, 1.5]


@pytest.mark.parametrize(
    "first", [pa.array([None]), pa.array([[]]), pa.array([{"x": None}])], ids=["column", "items", "field"]
)
def test_also_a_source_and_a_part_of_a_type_must_be_told(first: pa.Array, tmp_path: Path) -> None:
    pipeline = Pipeline("nulls")
    pipeline.source("numbers", generator(lambda i: pa.table({"c": first}), 3))
    with pytest.raises(TypeRefused, match="declare schema= for numbers"):
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")


def test_a_type_that_is_refused_is_told_with_the_operator_and_the_event(tmp_path: Path) -> None:
    pipeline = Pipeline("types")

    @pipeline.operator(pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 3)))
    def unsigned(table: pa.Table) -> pa.Table:
        return table.cast(pa.schema([("n", pa.uint64())])) if table["n"][0].as_py() else table.slice(0, 0)

    with pytest.raises(TypeRefused) as refused:
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")
    assert str(refused.value) == (
        "operator unsigned failed on numbers.out#2: column n has type uint64: Spark has no unsigned numbers and would "
        "turn large ones negative; cast it to pa.int64(), or to pa.decimal128(20, 0) if values reach 2**63"
    )
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_type_that_is_refused_of_a_source_is_told_with_the_event_that_it_was_about_to_send(tmp_path: Path) -> None:
    pipeline = Pipeline("types")

    def numbers(index: int) -> pa.Table:
        return pa.table({"n": pa.array([index], pa.int64() if index < 2 else pa.uint64())})

    pipeline.source("numbers", generator(numbers, 3), max_turn_events=1)
    with pytest.raises(TypeRefused, match=r"operator numbers failed on numbers.out#3 or a later event: column n has"):
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")


def put_together(kind: pa.DataType, **given: Any) -> Pipeline:
    """A union of a column of whole numbers with one of another type."""
    pipeline = Pipeline("types")
    numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": pa.array([i], pa.int32())}), 1))
    others = pipeline.source("others", generator(lambda i: pa.table({"n": pa.array([i]).cast(kind)}), 1))
    numbers.union(others.filter(pc.field("n").is_valid(), name="large"), name="both", **given)
    return pipeline


def test_what_does_not_fit_a_declared_union_is_to_be_cast_before_it(tmp_path: Path) -> None:
    declared = put_together(pa.int64(), schema=pa.schema([("n", pa.int32())]))
    with pytest.raises(SchemaChanged) as changed:
        run(declared, log=f"sqlite:///{tmp_path}/log.db", engine="inline")
    assert str(changed.value) == (
        "both.out produced column n as int64, but this port is declared with int32; cast it between large.out and "
        "both, with map or sql, or mend the declaration and start with --fresh"
    )


def test_what_does_not_fit_the_first_event_of_a_union_is_to_be_cast_before_it(tmp_path: Path) -> None:
    # Which of them comes first is a matter of luck.
    told = r"cast it between (numbers|large)\.out and both, with map or sql, or declare schema= and start with --fresh"
    with pytest.raises(SchemaChanged, match=told):
        run(put_together(pa.string()), log=f"sqlite:///{tmp_path}/log.db", engine="inline")


def test_such_an_event_can_be_tried_again_when_others_have_told_the_type(tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path}/log.db"
    pipeline = nulls_first(on_error="quarantine", deterministic=True)
    pipeline.sink("discounted", files(tmp_path / "out"))
    assert run(pipeline, log=log, engine="inline").quarantined == 1
    decide_quarantined(pipeline.graph(), quarantine_of(pipeline.graph(), log=log), "retry", log=log)
    run(pipeline, log=log, engine="inline")
    assert sorted(row["n"] for row in rows(tmp_path / "out")) == [0, 1, 2]


def test_a_column_that_is_declared_as_null_may_stay_so(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("nothing", pa.null())])
    pipeline = Pipeline("nulls")
    source = pipeline.source(
        "numbers", generator(lambda i: pa.table({"n": [i], "nothing": pa.nulls(1)}), 3, schema=schema)
    )
    source.filter(lambda record: True, name="same").sink(files(tmp_path / "out"))
    run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")
    assert [row["nothing"] for row in rows(tmp_path / "out")] == [None, None, None]
