"""Which records of an Input Set can have contributed to one record of its Output Set (LOG.io, Section 7.3).

An attribute dependency A <-> B says that the output records with B = x are made of the input records with A = x alone.
Clew knows those of its own functions; for others a user declares them with `depends=`. A window tells more: records
of an event that belong to another Input Set are left out, which the paper leaves open.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError
from clew.pipeline.builtin import Numbered, Stamped
from clew.pipeline.enriched import Enriched
from clew.pipeline.equality import comparable, equated
from clew.pipeline.functions import Aggregate, Join, Union
from clew.pipeline.graph import Generative, OperatorSpec
from clew.pipeline.operators import LateRecords
from clew.pipeline.records import Branch, Filter, PerRecord
from clew.pipeline.times import BOUNDS

#: Columns that say where a record of an input table comes from: the event's number, and its place there. Nobody calls
#: a column of his own so.
EVENT, PLACE = "⟨clew event⟩", "⟨clew record⟩"


@dataclass(frozen=True)
class Alone:
    """What ties a record to its output where a join has joined it with nothing, since a null is equal to no key."""

    #: A null in one of these columns of the output says so.
    keys: Sequence[str]
    #: Column of the output -> column of the input.
    columns: Mapping[str, str]
    #: The columns of the output that come from the other input: they hold nothing then.
    beside: Sequence[str]


@dataclass(frozen=True)
class Dependencies:
    """What ties the records of one input port to those of an output."""

    #: Column of the output -> column of the input.
    columns: Mapping[str, str] = field(default_factory=dict)
    #: Whether the n-th record of the output is made of the n-th of the input.
    by_place: bool = False
    #: Whether the records of the output are some of the input's, in their order.
    in_order: bool = False
    #: What holds for records of the output with a null in what is joined on, instead of `columns`.
    alone: Alone | None = None


def dependencies(spec: OperatorSpec, function: Generative, port: str, inputs: Mapping[str, pa.Schema]) -> Dependencies:
    """Return what is known of one input port; the schemas are those of the records of the ports, as far as known."""
    names = inputs[port].names
    own = _same(names)
    run = function.run
    if isinstance(spec.general, Numbered | Stamped):
        return Dependencies(own, by_place=True)
    if isinstance(run, Enriched):
        return Dependencies(_declared(spec, port), by_place=True)
    if isinstance(run, Union):
        return Dependencies(own, by_place=True)
    if isinstance(run, Filter | Branch) or isinstance(function.window, LateRecords):
        return Dependencies(own, in_order=True)
    if isinstance(run, PerRecord):
        passes = Dependencies(own, in_order=True)
        return passes if run.verb == "filter" else Dependencies(_declared(spec, port), run.verb == "map")
    if isinstance(run, Aggregate):
        # Records that are in a window already are grouped by its bounds too.
        return Dependencies(_same(name for name in (*BOUNDS, *run.by) if name in names))
    if isinstance(run, Join):
        left, right = ([] if schema is None else schema.names for schema in map(inputs.get, spec.inputs))
        return _of_left(run, left, right) if port == next(iter(spec.inputs)) else _of_right(run, left, right)
    return Dependencies(_declared(spec, port))


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def _of_left(run: Join, left: Sequence[str], right: Sequence[str]) -> Dependencies:
    renamed = run.renamed(left, right)
    return _of_side(run, _same(left), _shared(right, renamed), tuple(renamed.values()))


def _of_right(run: Join, left: Sequence[str], right: Sequence[str]) -> Dependencies:
    renamed = run.renamed(left, right)
    shared = _shared(right, renamed)
    columns = _same(shared) | {made: name for name, made in renamed.items()}
    return _of_side(run, columns, shared, [name for name in left if name not in shared])


def _of_side(run: Join, columns: Mapping[str, str], shared: Sequence[str], beside: Sequence[str]) -> Dependencies:
    # Of a window's bounds that both sides share a record without any has those of the record that it is joined with.
    own = {made: name for made, name in columns.items() if name in run.on or name not in shared}
    return Dependencies(own, alone=Alone(run.on, columns, beside))


def _shared(right: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    return [name for name in right if name not in renamed]


def _declared(spec: OperatorSpec, port: str) -> Mapping[str, str]:
    """Return what the user declared, for all ports or for one."""
    told = spec.settings.depends
    of_port = {name: column for name, column in told.items() if isinstance(column, str)}
    for name, columns in told.items():
        if not isinstance(columns, str) and name == port:
            of_port |= columns
    return of_port


def read_depends(given: Any, name: str) -> Mapping[str, Any]:
    """Read `depends=`: columns that pass through, output columns by input columns, or these by input port."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, Mapping | Sequence):
        raise GraphError(_unreadable(name, given))
    if isinstance(given, Sequence):
        given = {column: column for column in given}
    for column, of in given.items():
        if not isinstance(column, str) or not isinstance(of, str | Mapping):
            raise GraphError(_unreadable(name, given))
    return dict(given)


def _unreadable(name: str, given: Any) -> str:
    return (
        f"{name} has depends={given!r}; write it as a list of columns that pass through, as a dict from output columns "
        "to input columns, or as a dict of these by input port"
    )


def placed(table: pa.Table, number: int) -> pa.Table:
    """Return the records of an event with the columns that say where they come from."""
    places = pa.array(range(table.num_rows), pa.int64())
    return table.append_column(EVENT, pa.repeat(pa.scalar(number, pa.int64()), table.num_rows)).append_column(
        PLACE, places
    )


def contributing(
    of: Dependencies, made: pa.Table, places: Sequence[int], given: pa.Table, makers: Sequence[int] | None = None
) -> pa.Table:
    """Return the records of `given` that can have a part in the records at some places of `made`.

    `makers` says, where that is known, of which record of `given` each record is.
    """
    if makers is None and of.by_place and made.num_rows == given.num_rows:
        makers = range(made.num_rows)
    made = _as_given(of.columns, made, given)
    if makers is None and of.in_order:
        makers = _kept(of.columns, made, given)
    wanted = made.take(pa.array(places, pa.int64()))
    if of.alone is not None:
        without_key, alone = _without_key(of.alone, wanted)
        found = [
            _tied(_ties(of.columns, given, wanted.filter(pc.invert(without_key))), given),
            _tied(_ties(of.alone.columns, given, wanted.filter(alone)), given),
        ]
        return given.take(pa.concat_arrays(found).unique().sort())
    ties = _ties(of.columns, given, wanted)
    if makers is not None:
        of_wanted = pa.array([makers[place] for place in places], pa.int64())
        ties = [(pa.chunked_array([pa.arange(0, given.num_rows)]), pa.chunked_array([of_wanted])), *ties]
    return given.take(_tied(ties, given))


def _as_given(columns: Mapping[str, str], made: pa.Table, given: pa.Table) -> pa.Table:
    """Return records with columns of the types of those that they are tied to, where all their values can have these.

    All, and not only those that are wanted: how a record compares must not hang on which others are asked for.
    """
    for output, column in columns.items():
        if output in made.column_names and column in given.column_names:
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                values = made[output].cast(given.schema.field(column).type)
                made = made.set_column(made.column_names.index(output), output, values)
    return made


def _kept(columns: Mapping[str, str], made: pa.Table, given: pa.Table) -> Sequence[int] | None:
    """Return which of the given records those are that were passed on; None where others are just like them."""
    like_them = _tied(_ties(columns, given, made), given)
    places: list[int] = like_them.to_pylist()
    return places if len(places) == made.num_rows else None


def _without_key(alone: Alone, wanted: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Say of each record whether it has a null in what is joined on, and whether it is also of no other input."""
    without_key = reduce(pc.or_, [pc.is_null(wanted[name]) for name in alone.keys])
    return without_key, reduce(pc.and_, [without_key, *(pc.is_null(wanted[name]) for name in alone.beside)])


#: The values of a column of the given records, and those of the records that are wanted.
Tie = tuple[pa.ChunkedArray, pa.ChunkedArray]


def _ties(columns: Mapping[str, str], given: pa.Table, wanted: pa.Table) -> list[Tie]:
    return [
        (given[column], wanted[output])
        for output, column in columns.items()
        if output in wanted.column_names and column in given.column_names
    ]


def _tied(ties: Sequence[Tie], given: pa.Table) -> pa.Array:
    """Return the places of the given records that have, in all columns at once, the values of one that is wanted."""
    left = pa.arange(0, given.num_rows)
    # A combination of values is known by a number, which those that are wanted and those given share.
    numbers, numbers_wanted = _zeros(given.num_rows), _zeros(len(ties[0][1]) if ties else 0)
    for values, values_wanted in ties:
        own, own_wanted, many = _numbered(values.take(left), values_wanted)
        found = pc.is_valid(own)
        left, numbers, own = left.filter(found), numbers.filter(found), own.filter(found)
        if many > 1:
            combined = pc.add(pc.multiply(numbers_wanted, many), own_wanted)
            known = combined.unique()
            numbers_wanted = pc.index_in(combined, known)
            numbers = pc.index_in(pc.add(pc.multiply(numbers, many), own), known)
            left, numbers = left.filter(pc.is_valid(numbers)), numbers.drop_null()
    return left


def _zeros(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int64()), count)


def _numbered(values: pa.ChunkedArray, wanted: pa.ChunkedArray) -> tuple[pa.Array, pa.Array, int]:
    """Number the values that are wanted, the same by the same number, and each value by the one that it is like.

    What is like none has a null. A null is like another null. Returns also how many numbers there are.
    """
    if values.type == wanted.type:
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Groups and joins take 0.0 and -0.0 for one key.
            sought = equated(wanted)
            known = sought.unique()
            return _found(equated(values), known), _found(sought, known), len(known)
    # Lists and structs are not looked up by Arrow, and among values of another type it compares as it sees fit.
    numbers: dict[Any, int] = {}
    of_wanted = [numbers.setdefault(comparable(value), len(numbers)) for value in wanted.to_pylist()]
    of_values = [numbers.get(comparable(value)) for value in values.to_pylist()]
    return pa.array(of_values, pa.int64()), pa.array(of_wanted, pa.int64()), len(numbers)


def _found(values: pa.ChunkedArray, known: pa.Array) -> pa.Array:
    return pc.index_in(values, known, skip_nulls=False).combine_chunks()
