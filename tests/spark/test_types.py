"""Every type of Arrow goes through Spark unchanged, or is refused with its column and a cure."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from clew import Batch, Pipeline, generator
from clew.errors import TypeRefused
from clew.ids import Port
from clew.pipeline.schema import from_bytes
from clew.run import run
from clew.runtime.bodies import load
from clew.runtime.codec import decode
from clew.store.sqlite import SqliteStore
from tests.pipeline.arrow_types import KEPT, REFUSED

ROWS = max(len(kept.given) for kept in KEPT)


def given_column(array: pa.Array) -> pa.Array:
    """Return a column of ROWS values; the values of the list come first, nulls after them."""
    return array.take(pa.array([i if i < len(array) else None for i in range(ROWS)], pa.int64()))


def all_types(index: int) -> pa.Table:
    columns = {}
    for number, kept in enumerate(KEPT):
        try:
            columns[f"c{number}"] = given_column(kept.given)
        except pa.ArrowNotImplementedError:
            # Arrow cannot take from views and encoded arrays: nulls are added where it can concatenate.
            columns[f"c{number}"] = pa.concat_arrays([kept.given, pa.nulls(ROWS - len(kept.given), kept.given.type)])
    return pa.table(columns)


def stored(log: Path, port: Port) -> pa.Table:
    """Return the only event of a port, as the log holds it."""
    store = SqliteStore(log)
    try:
        (run_of_one,) = [run for run in store.events(port, 1, 1) if run.bodies]
        (body,) = load(f"{log}.bodies", run_of_one.bodies)
        schema = store.schema(port)
        assert schema is not None
        return decode(bytes(body), from_bytes(schema))
    finally:
        store.close()


@pytest.fixture(scope="module")
def log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("types") / "log.db"
    p = Pipeline("types")
    source = p.source("source", generator(all_types, 1, schema=all_types(0).schema))

    @p.operator(source)
    def arrow(table: pa.Table) -> pa.Table:
        return table

    @p.operator(arrow, window=Batch())
    def frame(df: DataFrame) -> DataFrame:
        return df

    @p.operator(arrow, row_local=True)
    def tagged(df: DataFrame) -> DataFrame:
        return df

    run(p, spark=spark, log=f"sqlite:///{path}")
    return path


@pytest.mark.parametrize("operator", ["source", "arrow", "frame", "tagged"])
def test_a_column_of_every_type_passes_unchanged(log: Path, operator: str) -> None:
    found = stored(log, Port(operator, "out"))
    for number, kept in enumerate(KEPT):
        column = found[f"c{number}"].combine_chunks()
        expected = given_column(kept.normal)
        assert column.type == expected.type, f"{kept.given.type} became {column.type}"
        # Compared as arrays: Python has no values for the furthest moments.
        assert column.equals(expected), f"{kept.given.type}: {column} is not {expected}"


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_a_type_that_would_lose_something_is_refused_with_its_cure(refused: object, spark: SparkSession) -> None:
    """All in one pipeline would stop at the first, so each is a run of one job."""
    kind, path, cure = refused.kind, refused.path, refused.cure  # type: ignore[attr-defined]
    p = Pipeline("refused")
    p.source("source", generator(lambda _: pa.table({"c": pa.nulls(1, kind)}), 1))
    with pytest.raises(TypeRefused) as error:
        run(p, spark=spark)
    assert error.value.column == path
    assert cure in str(error.value)
