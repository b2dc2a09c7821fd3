"""Runs of every kind of pipeline are explained, and what was gone through is counted."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Pipeline
from clew.connectors import files, generator, sqlite
from clew.connectors.postgres import postgres
from clew.model.verify import size, verify
from clew.run import run
from tests.model.pipelines import PIPELINES, all_postgres, each, general
from tests.model.runs import explained, finished


@pytest.mark.parametrize("name", PIPELINES)
def test_a_run_is_explained(tmp_path: Path, name: str) -> None:
    assert explained(finished(PIPELINES[name](tmp_path), tmp_path).verify())


def test_what_was_gone_through_is_counted(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    counts = made.verify().counts
    batches = len(made.ask("SELECT * FROM write_action"))
    # 40 events and the end of the stream, sent, taken by the operator, and taken by the sink.
    assert counts == {
        "events": 3 * 41, "source records": 120, "Input Sets": 40 + batches, "Output Sets": 40, "sink records": 120,
    }  # fmt: skip
    assert size(made.pipeline.graph(), made.url) == 2 * 41


def test_each_operator_is_named_before_it_is_looked_at(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    seen: list[str] = []
    verify(made.pipeline.graph(), made.url, str(made.bodies), progress=seen.append)
    assert seen == ["numbers", "doubled", "doubled_sink", "sinks"]


def test_the_operator_with_state_reads_and_writes_uses_all_of_them(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path)
    for table in ("state_event", "read_event", "write_body", "lineage", "done_write"):
        assert made.ask(f"SELECT * FROM {table} WHERE operator = 'rates'"), table
    assert made.ask("SELECT * FROM ack WHERE operator = 'rates' AND input_set = 0"), "an event of no Input Set"
    assert made.ask("SELECT * FROM ack WHERE operator = 'rates' AND part > 0"), "an event of two Input Sets"


@pytest.mark.parametrize("name", ["tumbling", "general", "from_csv", "to_upsert", "to_files"])
def test_a_run_with_its_log_in_postgresql_is_explained(tmp_path: Path, postgres_url: str, name: str) -> None:
    pipeline = PIPELINES[name](tmp_path)
    run(pipeline, log=postgres_url, bodies=str(tmp_path / "bodies"), engine="inline")
    assert explained(verify(pipeline.graph(), postgres_url, str(tmp_path / "bodies")))


def test_a_run_with_all_in_postgresql_is_explained(tmp_path: Path, postgres_url: str) -> None:
    pipeline = all_postgres(postgres_url)
    run(pipeline, log=postgres_url, bodies=str(tmp_path / "bodies"), engine="inline")
    verdict = verify(pipeline.graph(), postgres_url, str(tmp_path / "bodies"))
    assert explained(verdict)
    assert verdict.counts["source records"] == 50
    assert verdict.counts["sink records"] == 50 + 8


# Types.

NOON = datetime(2024, 2, 29, 12, 0, 0, 123456)
FLAT: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, -128, None]),
    "int64": (pa.int64(), [2**63 - 1, -(2**63), None]),
    "float32": (pa.float32(), [0.1, -1e30, None]),
    "float64": (pa.float64(), [0.1, 1e-300, None]),
    "text": (pa.string(), ["", 'ü, "q"\n\'', None]),
    "flag": (pa.bool_(), [True, False, None]),
    "money": (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-0.01"), None]),
    "exact": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), Decimal(0), None]),
    "day": (pa.date32(), [date(2024, 2, 29), date(1, 1, 1), None]),
    "local": (pa.timestamp("us"), [NOON, datetime(1, 1, 1), None]),
    "instant": (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC), None]),
    "raw": (pa.binary(), [b"\x00\xff", b"", None]),
    "clock": (pa.time64("us"), [time(23, 59, 59, 999999), time(0), None]),
    "lasted": (pa.duration("us"), [timedelta(days=-1, microseconds=1), timedelta(0), None]),
    "nothing": (pa.null(), [None, None, None]),
}
DEEP: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(pa.date32()), [[date(2024, 1, 1), None], [], None]),
    "struct": (
        pa.struct([("x", pa.float64()), ("at", pa.timestamp("us", "UTC"))]),
        [{"x": 0.5, "at": NOON.replace(tzinfo=UTC)}, {"x": None, "at": None}, None],
    ),
    "map": (pa.map_(pa.string(), pa.decimal128(10, 3)), [[("a", Decimal("1.5")), ("b", None)], [], None]),
}
NAN = {"nan": (pa.float64(), [float("nan"), float("inf"), float("-inf")])}
#: What each sink takes; the rest it refuses.
TAKES: dict[str, dict[str, tuple[pa.DataType, list[Any]]]] = {
    "sqlite": {name: FLAT[name] for name in FLAT if name not in ("clock", "lasted", "nothing")},
    "postgres": {name: FLAT[name] for name in FLAT if name not in ("clock", "lasted", "nothing")} | NAN,
    "csv": {name: FLAT[name] for name in FLAT if name != "raw"} | NAN,
    "jsonl": {name: FLAT[name] for name in FLAT if name not in ("raw", "lasted")} | DEEP,
    "parquet": FLAT | DEEP | NAN,
}


def typed(columns: dict[str, tuple[pa.DataType, list[Any]]]) -> Pipeline:
    schema = pa.schema([(name, kind) for name, (kind, _) in columns.items()])
    arrays = [pa.array(values, kind) for kind, values in columns.values()]
    table = pa.Table.from_arrays(arrays, schema=schema)
    pipeline = Pipeline("typed")
    source = pipeline.source("typed", generator(lambda index: table, 4, schema=schema))

    @pipeline.operator(source, deterministic=True)
    def same(table: pa.Table) -> pa.Table:
        return table

    return pipeline


@pytest.mark.parametrize("sink", ["sqlite", "csv", "jsonl", "parquet"])
def test_every_type_comes_back_from_the_sink_as_it_was_written(tmp_path: Path, sink: str) -> None:
    pipeline = typed(TAKES[sink])
    place = sqlite(tmp_path / "s.db", table="t") if sink == "sqlite" else files(tmp_path / "out", format=sink)
    pipeline.sink("same", place)
    assert explained(finished(pipeline, tmp_path).verify())


def test_every_type_comes_back_from_postgresql_as_it_was_written(tmp_path: Path, postgres_url: str) -> None:
    pipeline = typed(TAKES["postgres"])
    pipeline.sink("same", postgres(postgres_url, table="Typed"))
    assert explained(finished(pipeline, tmp_path).verify())


def test_one_column_of_nulls_comes_back_from_a_csv_file(tmp_path: Path) -> None:
    pipeline = typed({"text": FLAT["text"]})
    pipeline.sink("same", files(tmp_path / "out", format="csv"))
    assert explained(finished(pipeline, tmp_path).verify())
