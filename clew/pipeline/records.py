"""Functions of single records: how tables become records and records become tables."""

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

from clew.errors import GraphError
from clew.pipeline.columns import Types
from clew.pipeline.lookups import taken
from clew.pipeline.predicates import filtered
from clew.pipeline.shapes import shaped

Verb = Literal["map", "flat_map", "filter"]

#: What a field's annotation means in Arrow. A decimal has a scale of its own, so it must be declared with schema=.
_KINDS: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", "UTC"),
    date: pa.date32(),
    time: pa.time64("us"),
}


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
        made: list[Mapping[str, Any]] = []
        #: Of each row that was made, and of each that was kept, which record it comes from.
        places: list[int] = []
        failed: dict[int, Exception] = {}
        rows = table.to_pylist()
        for index, row in enumerate(rows):
            try:
                result = self.function(row if self.record is None else self.record(**row), **given)
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
        if self.verb == "filter":
            kept = table.take(pa.array(places, pa.int64()))
        else:
            before = dict(zip(table.schema.names, table.schema.types))
            kept, refused = shaped(made, places, schema, {**before, **self.declared})
            failed |= refused
        for index, failure in failed.items():
            # Who reports the failure names the record; the traceback stays the user's.
            failure.__clew_record__ = (index, rows[index])  # type: ignore[attr-defined]
        return kept, [failed[index] for index in sorted(failed)]

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        """Return the inputs whose records leave by a port as they came."""
        return inputs if self.verb == "filter" else ()


def _row(result: Any) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        return result
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    raise TypeError(f"a record must be a dict or a dataclass, not {type(result).__name__}")


def record_type(hint: Any) -> type | None:
    """Return the dataclass that records are given as, or None for dicts; raises GraphError for anything else."""
    plain = typing.get_origin(hint) or hint
    if hint is None or hint is Any or (isinstance(plain, type) and issubclass(plain, Mapping)):
        return None
    if typing.is_typeddict(hint):
        return None
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    raise GraphError(f"{_name(hint)} is no record; annotate it as dict, as a TypedDict or as a dataclass")


def schema_of(hint: Any, verb: Verb) -> pa.Schema | None:
    """Return the schema that a function's return annotation tells, where it tells one."""
    if verb == "flat_map":
        hint = _element(hint)
    if hint is None or not (isinstance(hint, type) and (dataclasses.is_dataclass(hint) or typing.is_typeddict(hint))):
        return None
    fields = typing.get_type_hints(hint)
    kinds = {name: _kind(kind) for name, kind in fields.items()}
    return None if None in kinds.values() else pa.schema(list(kinds.items()))


def check_returns(hint: Any, verb: Verb, name: str) -> None:
    """Raise GraphError when a function's return annotation cannot be what the verb needs."""
    if hint is None or hint is Any:
        return
    if verb == "filter" and hint is not bool:
        raise GraphError(f"{name} returns {_name(hint)}; what filters returns bool")
    if verb == "map":
        record_type(hint)
    if verb == "flat_map":
        if not issubclass(typing.get_origin(hint) or hint, Iterable):
            raise GraphError(f"{name} returns {_name(hint)}; what flat_map calls returns records, as in list[dict]")
        record_type(_element(hint))


def _element(hint: Any) -> Any:
    found = typing.get_args(hint)
    return found[0] if found else None


def _kind(hint: Any) -> pa.DataType | None:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(hint) if one is not type(None)]
        return _kind(others[0]) if len(others) == 1 else None
    if typing.get_origin(hint) is list:
        inner = _kind(_element(hint))
        return None if inner is None else pa.list_(inner)
    return None if hint is Decimal else _KINDS.get(hint)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))


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
        made: dict[str, pa.Table] = {}
        failed: dict[int, Exception] = {}
        left = table.append_column(_PLACE, pa.array(range(table.num_rows), pa.int64()))
        for port, predicate in self.predicates.items():
            own, failures = _holds(left, predicate, given, stop)
            made[port] = own.drop_columns([_PLACE])
            failed |= dict(map(_of_all, failures))
            left = _without(left, {*own[_PLACE].to_pylist(), *failed})
            if stop and failed:
                break
        if self.rest is not None:
            made[self.rest] = left.drop_columns([_PLACE])
        return made, [failed[place] for place in sorted(failed)]

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        """Return the inputs whose records leave by a port as they came."""
        return inputs


#: Where among all records one is, while ports take theirs.
_PLACE = "_clew_place"


def _holds(
    table: pa.Table, predicate: Any, given: Mapping[str, Any], stop: bool
) -> tuple[pa.Table, Sequence[Exception]]:
    """Return the records for which a predicate holds: an Arrow expression, or a function of a record."""
    if not callable(predicate):
        return filtered(table, predicate), ()
    own = taken(predicate, given)
    run = PerRecord(lambda row: predicate({k: v for k, v in row.items() if k != _PLACE}, **own), "filter")
    return run.sift(table, {}, stop=stop)


def _of_all(failure: Any) -> tuple[int, Exception]:
    """Have a failure name its record by the place among all, and return both."""
    record = dict(failure.__clew_record__[1])
    place = record.pop(_PLACE)
    failure.__clew_record__ = (place, record)
    return place, failure


def _without(table: pa.Table, gone: Collection[int]) -> pa.Table:
    places = [index for index, place in enumerate(table[_PLACE].to_pylist()) if place not in gone]
    return table.take(pa.array(places, pa.int64()))


#: Functions that look at one record at a time: what they fail on is a record, and is told as one.
OfRecords = PerRecord | Branch


@dataclasses.dataclass(frozen=True)
class Filter:
    """Keeps the records for which an Arrow expression holds."""

    predicate: Any

    def __call__(self, table: pa.Table) -> pa.Table:
        return filtered(table, self.predicate)

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        """Return the inputs whose records leave by a port as they came."""
        return inputs
