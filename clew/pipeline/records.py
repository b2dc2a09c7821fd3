"""Functions of single records: how tables become records and records become tables."""

import dataclasses
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from clew.pipeline.columns import Types
from clew.pipeline.hints import OfDataclass, Verb, built, check_fit
from clew.pipeline.lookups import taken
from clew.pipeline.predicates import filtered
from clew.pipeline.shapes import shaped


@dataclasses.dataclass(frozen=True)
class PerRecord:
    """Runs a function of one record over all records of a table.

    A record is a dict, or an object of the dataclass that the function's parameter is annotated with.
    """

    function: Callable[..., Any]
    verb: Verb
    record: type | None = None
    #: The types of columns of the result that are told by a declaration, or by who else knows them.
    declared: Types = dataclasses.field(default_factory=dict)
    #: In which form it takes lookups.
    lookup_form: typing.ClassVar[str] = "records"

    def __call__(self, table: pa.Table, **given: Any) -> pa.Table:
        return self.over(table, given)

    def over(self, table: pa.Table, given: Mapping[str, Any], schema: pa.Schema | None = None) -> pa.Table:
        """Return what the function makes of all records, of the port's schema; raises at the first that it fails on."""
        made, failed = self.sift(table, given, schema, stop=True)
        if failed:
            raise failed[0]
        return made

    def sift(
        self, table: pa.Table, given: Mapping[str, Any], schema: pa.Schema | None = None, stop: bool = False
    ) -> tuple[pa.Table, list[Exception]]:
        """Return what the function makes of the records on which it does not fail, and how it fails on the others.

        It fails on a record where it raises, and where it returns what a port of this schema cannot carry. Each failure
        has the place of its record, and the record, as `__clew_record__`, and they come in the order of their places.
        With `stop`, nothing is made after the first that it raises on.
        """
        if self.record is not None and table.num_rows:
            check_fit(self.record, table.schema)
        rows = table.to_pylist()
        made, places, failed = self.each(rows, given, stop)
        if self.verb == "filter":
            kept = _taken(table, places)
        else:
            before = dict(zip(table.schema.names, table.schema.types))
            kept, refused = shaped(made, places, schema, {**before, **self.declared})
            failed |= refused
        for index, failure in failed.items():
            blame(failure, index, rows[index])
        return kept, [failed[index] for index in sorted(failed)]

    def each(
        self, rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any], stop: bool
    ) -> tuple[list[Mapping[str, Any]], list[int], dict[int, Exception]]:
        """Call the function with each record; return what it makes, of which records that is, and how it fails.

        What a filter keeps is told by the places alone.
        """
        made: list[Mapping[str, Any]] = []
        places: list[int] = []
        failed: dict[int, Exception] = {}
        for index, row in enumerate(rows):
            try:
                result = self.function(row if self.record is None else built(self.record, row), **given)
                if self.verb == "map":
                    made.append(_row(result))
                    places.append(index)
                elif self.verb == "flat_map":
                    own = [_row(one) for one in result or ()]
                    made += own
                    places += [index] * len(own)
                elif result:
                    places.append(index)
            except Exception as error:
                failed[index] = error
                if stop:
                    break
        return made, places, failed

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        """Return the inputs whose records leave by a port as they came."""
        return inputs if self.verb == "filter" else ()


def _row(result: Any) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        return result
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    raise TypeError(f"a record must be a dict or a dataclass, not {type(result).__name__}")


def blame(failure: Any, place: int, row: Mapping[str, Any]) -> None:
    """Have a failure name the record that it is of."""
    # Who reports the failure names the record; the traceback stays the user's.
    failure.__clew_record__ = (place, row)


def blamed(failure: Any) -> tuple[int, Mapping[str, Any]]:
    """Return the place of the record that a failure names, and the record."""
    place, row = failure.__clew_record__
    return place, row


@dataclasses.dataclass(frozen=True)
class Branch:
    """Sends each record to the first port whose predicate holds; what no port takes goes to `rest`, or nowhere."""

    predicates: Mapping[str, Any]
    rest: str | None
    lookup_form: typing.ClassVar[str] = "records"

    def __call__(self, table: pa.Table, **given: Any) -> dict[str, pa.Table]:
        return self.over(table, given)

    def over(self, table: pa.Table, given: Mapping[str, Any], schema: pa.Schema | None = None) -> dict[str, pa.Table]:
        """Return each port's records; raises at the first that a predicate fails on."""
        made, failed = self.sift(table, given, schema, stop=True)
        if failed:
            raise failed[0]
        return made

    def sift(
        self, table: pa.Table, given: Mapping[str, Any], schema: pa.Schema | None = None, stop: bool = False
    ) -> tuple[dict[str, pa.Table], list[Exception]]:
        """Return each port's records, and how predicates fail on those that are in none; as `PerRecord.sift` does."""
        for predicate in self.predicates.values():
            if isinstance(predicate, OfDataclass):
                check_fit(predicate.record, table.schema)
        made: dict[str, pa.Table] = {}
        failed: dict[int, Exception] = {}
        left, places = table, list(range(table.num_rows))
        for port, predicate in self.predicates.items():
            own, failures = _holding(left, predicate, given, stop)
            made[port] = _taken(left, own)
            for index, (failure, row) in failures.items():
                # A failure names its record by the place among all.
                blame(failure, places[index], row)
                failed[places[index]] = failure
            stay = _others(len(places), {*own, *failures})
            left, places = _taken(left, stay), [places[index] for index in stay]
            if stop and failed:
                break
        if self.rest is not None:
            made[self.rest] = left
        return made, [failed[place] for place in sorted(failed)]

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        """Return the inputs whose records leave by a port as they came."""
        return inputs


def _holding(
    table: pa.Table, predicate: Any, given: Mapping[str, Any], stop: bool
) -> tuple[list[int], dict[int, tuple[Exception, Mapping[str, Any]]]]:
    """Return which records a predicate holds for, an Arrow expression or a function of a record; and how it fails."""
    if not callable(predicate):
        # Whatever people call their columns, this is another one.
        place = max((name for name in table.column_names if name.startswith(_PLACE)), default="") + _PLACE
        placed = table.append_column(place, pa.array(range(table.num_rows), pa.int64()))
        return filtered(placed, predicate)[place].to_pylist(), {}
    rows = table.to_pylist()
    _, places, failed = PerRecord(predicate, "filter").each(rows, taken(predicate, given), stop)
    return places, {index: (failure, rows[index]) for index, failure in failed.items()}


#: How the column is called by which an expression tells the places of records.
_PLACE = "_clew_place"


def _others(count: int, gone: Collection[int]) -> list[int]:
    return [index for index in range(count) if index not in gone]


def _taken(table: pa.Table, places: Sequence[int]) -> pa.Table:
    return table.take(pa.array(places, pa.int64()))


@dataclasses.dataclass(frozen=True)
class Filter:
    """Keeps the records for which an Arrow expression holds."""

    predicate: Any

    def __call__(self, table: pa.Table) -> pa.Table:
        return filtered(table, self.predicate)

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        """Return the inputs whose records leave by a port as they came."""
        return inputs
