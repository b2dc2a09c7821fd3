"""Which records of an Input Set can have contributed to one record of its Output Set (LOG.io, Section 7.3).

An attribute dependency A <-> B says that the output records with B = x are made of the input records with A = x alone.
Clew knows those of its own functions; for others a user declares them with `depends=`. A window tells more: records
of an event that belong to another Input Set are left out, which the paper leaves open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError
from clew.pipeline.enriched import Enriched
from clew.pipeline.equality import equated
from clew.pipeline.functions import Aggregate, Join, Union
from clew.pipeline.graph import Generative, OperatorSpec
from clew.pipeline.operators import LateRecords
from clew.pipeline.records import Branch, Filter, PerRecord
from clew.pipeline.times import BOUNDS

#: Columns that say where a record of an input table comes from: the event's number, and its place there. Nobody calls
#: a column of his own so.
EVENT, PLACE = "⟨clew event⟩", "⟨clew record⟩"


@dataclass(frozen=True)
class Dependencies:
    """What ties the records of one input port to those of an output."""

    #: Column of the output -> column of the input.
    columns: Mapping[str, str] = field(default_factory=dict)
    #: Whether the n-th record of the output is made of the n-th of the input.
    by_place: bool = False


def dependencies(spec: OperatorSpec, function: Generative, port: str, schema: pa.Schema) -> Dependencies:
    """Return what is known of one input port, whose records have this schema."""
    own = {name: name for name in schema.names}
    run = function.run
    if isinstance(run, Enriched):
        return Dependencies(_declared(spec, port), by_place=True)
    if isinstance(run, Filter | Branch | Union) or isinstance(function.window, LateRecords):
        return Dependencies(own)
    if isinstance(run, PerRecord):
        return Dependencies(own) if run.verb == "filter" else Dependencies(_declared(spec, port), run.verb == "map")
    if isinstance(run, Aggregate):
        # Records that are in a window already are grouped by its bounds too.
        return Dependencies({name: name for name in (*BOUNDS, *run.by) if name in schema.names})
    if isinstance(run, Join):
        first = port == next(iter(spec.inputs))
        return Dependencies(own if first else {name: name for name in run.on})
    return Dependencies(_declared(spec, port))


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


def contributing(of: Dependencies, made: pa.Table, places: Sequence[int], given: pa.Table) -> pa.Table:
    """Return the records of `given` that can have a part in the records at some places of `made`."""
    if of.by_place and made.num_rows == given.num_rows:
        given = given.take(pa.array(places, pa.int64()))
    wanted = made.take(pa.array(places, pa.int64()))
    for output, column in of.columns.items():
        if output in wanted.column_names and column in given.column_names:
            given = given.filter(_among(given[column], wanted[output]))
    return given


def _among(values: pa.ChunkedArray, wanted: pa.ChunkedArray) -> pa.ChunkedArray:
    """Say of each value whether it is among those wanted; a null is like another null."""
    # Groups and joins take 0.0 and -0.0 for one key.
    values, wanted = equated(values), equated(wanted)
    try:
        return pc.is_in(values, value_set=wanted.unique().cast(values.type), skip_nulls=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Lists and structs are not looked up by Arrow.
        among = {_comparable(value) for value in wanted.to_pylist()}
        return pa.chunked_array([pa.array([_comparable(value) in among for value in values.to_pylist()], pa.bool_())])


def _comparable(value: Any) -> Any:
    """Return what is equal for values that are the same, down to the innermost; Python takes no NaN for another."""
    if isinstance(value, Mapping):
        return tuple((key, _comparable(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return "NaN" if isinstance(value, float) and value != value else value
