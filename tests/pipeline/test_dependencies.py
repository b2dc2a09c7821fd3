"""Which records are tied to which: held against a relation that plain Python computes record by record."""

from collections.abc import Mapping
from random import Random
from time import process_time
from typing import Any

import pyarrow as pa
import pytest

from clew.pipeline.dependencies import Dependencies, contributing

NAN = float("nan")
#: By the names of columns: their values, their type in the input, and their type in the output.
COLUMNS: dict[str, tuple[list[Any], pa.DataType, pa.DataType]] = {
    "text": (["a", "b", "", None], pa.string(), pa.large_string()),
    "whole": ([0, 1, 2, None], pa.int64(), pa.int32()),
    "part": ([0.0, -0.0, NAN, 1.5, None], pa.float64(), pa.float32()),
    "flag": ([True, False, None], pa.bool_(), pa.bool_()),
    "several": ([[1.0, NAN], [NAN], [], None, [None]], pa.list_(pa.float64()), pa.list_(pa.float64())),
    "made_up": (
        [{"x": NAN, "y": "a"}, {"x": 1.0, "y": None}, None],
        *[pa.struct({"x": pa.float64(), "y": pa.string()})] * 2,
    ),
    # The output has what the input's type cannot hold.
    "other": ([1, 2, 3], pa.int64(), pa.string()),
    "nothing": ([None], pa.null(), pa.null()),
}


def plain(value: Any) -> Any:
    """Return what is equal where values are the same: a NaN like another, and so are nulls and zeros."""
    if isinstance(value, float):
        return "no number" if value != value else value + 0.0
    if isinstance(value, Mapping):
        return [(name, plain(inner)) for name, inner in value.items()]
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def tables(random: Random, names: list[str]) -> tuple[pa.Table, pa.Table]:
    """Return records that were made and records that were given, of some columns; those made are called otherwise."""

    def column(name: str, made: bool) -> pa.ChunkedArray:
        values, *types = COLUMNS[name]
        chosen = [random.choice(values) for _ in range(30)]
        if name == "other" and made:
            chosen = [random.choice([f"item {value}", str(value)]) for value in chosen]
            # Of one that is no number, all are compared as they are.
            chosen[0] = "item"
        return pa.chunked_array([chosen[:11], chosen[11:]], types[made])

    return (
        pa.table({f"made {name}": column(name, True) for name in names}),
        pa.table({"n": range(30), **{name: column(name, False) for name in names}}),
    )


@pytest.mark.parametrize("seed", range(60))
def test_records_are_tied_by_all_their_columns_at_once(seed: int) -> None:
    random = Random(seed)
    names = random.sample(sorted(COLUMNS), random.randint(1, 3))
    made, given = tables(random, names)
    places = sorted(random.sample(range(made.num_rows), random.randint(1, 8)))
    wanted = [[plain(value) for value in made.slice(place, 1).to_pylist()[0].values()] for place in places]
    expected = [
        record["n"] for record in given.to_pylist() if [plain(record[name]) for name in names] in wanted
    ]  # fmt: skip
    found = contributing(Dependencies({f"made {name}": name for name in names}), made, places, given)
    assert found["n"].to_pylist() == expected


def test_records_are_tied_by_their_place_and_their_columns_at_once() -> None:
    """The n-th is made of the n-th; one whose column says otherwise is of none, whatever others are wanted."""
    made, given = pa.table({"k": ["a", "b", "c"]}), pa.table({"k": ["b", "a", "c"]})
    assert contributing(Dependencies({"k": "k"}, by_place=True), made, [0, 1, 2], given)["k"].to_pylist() == ["c"]


def test_how_a_record_is_tied_does_not_hang_on_which_others_are_wanted() -> None:
    """Text may be a number in one record and none in another: then all are compared as they are."""
    made, given = pa.table({"k": ["1", "item"], "l": ["1", "2"]}), pa.table({"n": [1, 2]})
    for column, expected in (("k", ([], [])), ("l", ([1], [2]))):
        alone = [contributing(Dependencies({column: "n"}), made, [place], given)["n"].to_pylist() for place in (0, 1)]
        assert alone == list(expected)
        both = contributing(Dependencies({column: "n"}), made, [0, 1], given)["n"].to_pylist()
        assert both == [*expected[0], *expected[1]]


def test_many_records_are_tied_in_a_time_that_grows_with_them_alone() -> None:
    def seconds(count: int) -> float:
        columns = {"x": [n % 1000 for n in range(count)], "y": [f"{n // 7}" for n in range(count)]}
        table = pa.table({**columns, "z": [n / 3 for n in range(count)]})
        started = process_time()
        found = contributing(Dependencies({name: name for name in "xyz"}), table, range(count), table)
        assert found.num_rows == count
        return process_time() - started

    seconds(100)
    assert min(seconds(40_000) for _ in range(3)) < 40 * max(seconds(2_000) for _ in range(3))
