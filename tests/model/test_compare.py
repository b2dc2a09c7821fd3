"""Which records are the same, and what a finding shows of two sequences of them that differ."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from clew import Pipeline
from clew.connectors import files, generator
from clew.model.compare import numbers_of, rows_of, shown, shown_apart
from clew.model.outside import file_tables
from tests.model.runs import explained, finished, first

FIVE = [(number,) for number in range(5)]


@pytest.mark.parametrize(
    ("found", "expected_told", "found_told"),
    [
        ([(9,), *FIVE[1:]], "n 0; n 1; n 2 and 2 more", "n 9; n 1; n 2 and 2 more"),
        ([*FIVE[:4], (9,)], "from record 5 on: n 4", "from record 5 on: n 9"),
        (FIVE[:3], "from record 4 on: n 3; n 4", "from record 4 on: no record"),
        ([], "n 0; n 1; n 2 and 2 more", "no record"),
    ],
)
def test_a_finding_begins_with_the_first_record_that_differs(
    found: list[tuple[int]], expected_told: str, found_told: str
) -> None:
    """Of many records, the first ones are the same, and would tell nothing."""
    assert shown_apart(FIVE, found, ["n"]) == (expected_told, found_told)


#: When the year 10000 begins: the dates of Python end before it.
FAR = 253_402_300_800_000_000

TIMES = pa.timestamp("us")


def test_times_that_python_has_no_dates_for_are_compared_and_shown() -> None:
    near, far = pa.table({"t": pa.array([0], TIMES)}), pa.table({"t": pa.array([FAR], TIMES)})
    both = pa.concat_tables([near, far])
    # The same record has the same number, whatever stands beside it.
    assert [*numbers_of(both)] == [*numbers_of(near), *numbers_of(far)]
    assert rows_of(both) == [*rows_of(near), *rows_of(far)]
    assert numbers_of(far) != numbers_of(pa.table({"t": pa.array([FAR + 1], TIMES)}))
    assert shown(rows_of(far), ["t"]) == "t '10000-01-01 00:00:00.000000'"


def test_such_times_may_be_parts_of_others() -> None:
    kinds = pa.struct(
        [("list", pa.list_(TIMES)), ("map", pa.map_(pa.date32(), TIMES)), ("day", pa.date32()), ("none", TIMES)]
    )
    far = {"list": [FAR, None], "map": [(2_932_897, FAR)], "day": -2_932_897, "none": None}
    near = {"list": [0], "map": [(0, 0)], "day": 0, "none": None}
    tables = [pa.table({"of": pa.array(values, kinds)}) for values in ([near], [far, None], [near, far, None])]
    assert rows_of(tables[2]) == [*rows_of(tables[0]), *rows_of(tables[1])]
    told = shown(rows_of(tables[1]), ["of"])
    assert told.count("10000-01-01") == 3
    assert told.count("-6060-01-02") == 1


def test_a_run_with_such_times_is_explained(tmp_path: Path) -> None:
    times = pa.table({"t": pa.array([FAR, 0], TIMES), "d": pa.array([2_932_897, 0], pa.date32())})
    pipeline = Pipeline("far")
    pipeline.source("times", generator(lambda index: times, 3)).sink(files(tmp_path / "out"), name="kept")
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    file = min((tmp_path / "out").glob("*.parquet"))
    pa.parquet.write_table(times.slice(1), file)
    assert first(made.verify()).expected == "t '10000-01-01 00:00:00.000000', d '10000-01-01'"


def test_times_that_python_has_no_dates_for_are_read_from_text(tmp_path: Path) -> None:
    """Dates over the whole range in which Arrow writes and reads them, as a CSV file has them."""
    days = [-719_162, -719_163, -719_529, 2_932_896, 2_932_897, *range(-4_000_000, 4_000_000, 9_973)]
    late = 86_399_999_999
    given = pa.table({
        "day": pa.array(days, pa.int32()).cast(pa.date32()),
        "at": pa.array([day * 86_400_000_000 + late for day in days], TIMES),
        "utc": pa.array([day * 86_400_000_000 + 5 for day in days], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    pyarrow.csv.write_csv(given, tmp_path / "given.csv")
    assert pa.concat_tables(file_tables(str(tmp_path / "given.csv"), given.schema)).equals(given)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("\n\nn\n1\n", pa.int64()),
        ("\r\nn\r\n1\r\n", pa.int64()),
        ("n\nabc\n", pa.binary()),
        # Between two floats: by way of a double it would be rounded twice.
        ("n\n1.00000017881393432617187499\n", pa.float32()),
        ("n\n0000-01-01\n", pa.date32()),
    ],
)
def test_a_csv_file_is_read_as_the_source_reads_it(content: str, kind: pa.DataType, tmp_path: Path) -> None:
    (tmp_path / "given.csv").write_text(content, newline="")
    pipeline = Pipeline("read")
    given = files(tmp_path / "given.csv", schema=pa.schema([("n", kind)]))
    pipeline.sink(pipeline.source("given", given), files(tmp_path / "out"))
    made = finished(pipeline, tmp_path)
    assert made.verify().counts["source records"] == 1
    assert explained(made.verify())
