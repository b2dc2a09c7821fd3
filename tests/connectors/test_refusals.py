"""What a connector is wrongly given is refused, with what it expects."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew.connectors import files, sqlite, streaming
from clew.connectors.dialect import quote
from clew.connectors.listing import listing
from clew.connectors.sqlvalues import encode_key
from clew.connectors.textfiles import infer
from clew.errors import GraphError, SourceFailed
from tests.connectors.reading import all_events


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: files([]), "files need at least one path, and events at least one row"),
        (lambda: files("in", rows_per_event=0), "files need at least one path, and events at least one row"),
        (
            lambda: files("in", follow=True, partition_by="day"),
            "files that are followed cannot be partitioned; leave out partition_by= or follow=",
        ),
        (
            lambda: streaming(lambda spark: None, trigger="1 second", until="availableNow"),
            "streaming takes either trigger= or until=, because Spark does; leave one of them out",
        ),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused_where_it_stands(
    declare: Callable[[], object], message: str
) -> None:
    with pytest.raises(GraphError) as refused:
        declare()
    assert refused.value.message == message
    assert refused.value.location.startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (True, "True cannot be a key"),
        (None, "None cannot be a key"),
        (float("inf"), "inf has no place in an order"),
        (timedelta(1), r"datetime.timedelta\(days=1\) of type timedelta cannot be a key"),
    ],
)
def test_a_value_that_cannot_be_gone_on_from_is_no_key(key: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_key(key)


def test_a_name_that_no_database_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be an identifier"):
        quote("a\0b")


def test_a_query_whose_key_has_no_order_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.execute("CREATE TABLE t (k REAL)")
        database.execute("INSERT INTO t VALUES (1.5), (9e999)")
    source = sqlite(tmp_path / "a.db", query="SELECT k FROM t", unique="k", rows_per_event=1)
    with pytest.raises(
        SourceFailed, match="column k: inf has no place in an order; name a unique column that is never"
    ):
        all_events(source, 1)


def test_a_text_that_is_no_text_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"n\xff\xfe,m\n1,2\n")
    with pytest.raises(SourceFailed, match=r"a\.csv: line 1 is no header .*; "):
        all_events(files(tmp_path / "a.csv"), 1)


def test_a_file_that_goes_while_it_is_listed_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id\n1\n")
    entries = listing([str(tmp_path)])
    (tmp_path / "orders.csv").unlink()
    with pytest.raises(
        SourceFailed, match=r"orders.csv: it cannot be opened \(.*No such file.*\); let Clew read it, and run again$"
    ):
        infer(entries, "csv")
