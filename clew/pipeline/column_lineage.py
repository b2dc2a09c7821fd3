"""Which columns of an operator's inputs a column of its output is made of, as far as Clew itself knows.

It knows its own functions, and what a user declared with `depends=`. What any other function does with its columns is
not guessed at: a column of the same name need not be the same column.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import pyarrow as pa

from clew.pipeline.builtin import Numbered, Stamped
from clew.pipeline.dependencies import dependencies
from clew.pipeline.functions import Aggregate, Join
from clew.pipeline.graph import Generative, OperatorSpec
from clew.pipeline.operators import LateRecords
from clew.pipeline.times import BOUNDS
from clew.pipeline.timewindows import EventTime

#: How a column is used: as it is, in an aggregation, or to decide which records belong together.
Use = Literal["identity", "aggregation", "group by", "join"]
#: The fixed schemas of input ports, by port.
Schemas = Mapping[str, pa.Schema]


class ColumnUse(NamedTuple):
    """A column of an input port, and how it is used."""

    port: str
    column: str
    use: Use


def column_lineage(spec: OperatorSpec, output: str, inputs: Schemas) -> dict[str, list[ColumnUse]]:
    """Return what columns of an output port, or of a connection for writes, are made of; others are not known.

    Inputs whose schema is not known yet have no part in it.
    """
    found: dict[str, list[ColumnUse]] = {}
    for made, use in _direct(spec, output, inputs):
        if use not in found.setdefault(made, []):
            found[made].append(use)
    return found


def deciding_columns(spec: OperatorSpec, output: str, inputs: Schemas) -> list[ColumnUse]:
    """Return the columns by whose values records come together in an output port: those of groups and joins."""
    found = []
    for function in _functions(spec, output):
        run = function.run
        by: tuple[str, ...] = run.by if isinstance(run, Aggregate) else run.on if isinstance(run, Join) else ()
        use: Use = "join" if isinstance(run, Join) else "group by"
        found += [ColumnUse(port, name, use) for port, schema in inputs.items() for name in by if name in schema.names]
    return found


def _functions(spec: OperatorSpec, output: str) -> list[Generative]:
    return [function for function in spec.functions if output in function.outputs]


def _direct(spec: OperatorSpec, output: str, inputs: Schemas) -> Iterator[tuple[str, ColumnUse]]:
    if (spec.is_sink and output in spec.sinks) or isinstance(spec.general, Numbered | Stamped):
        # What has no function writes records as they are; the others add a column.
        yield from _same(inputs)
        return
    for function in _functions(spec, output):
        if isinstance(function.window, LateRecords):
            yield from _same(_late_input(spec, function, output, inputs))
        elif isinstance(function.run, Aggregate):
            yield from _aggregated(function.run, inputs)
        elif isinstance(function.run, Join):
            yield from _joined(function.run, spec, function, inputs)
        else:
            for port in inputs:
                known = dependencies(spec, function, port, inputs).columns
                yield from ((made, ColumnUse(port, name, "identity")) for made, name in known.items())


def _same(inputs: Schemas) -> Iterator[tuple[str, ColumnUse]]:
    for port, schema in inputs.items():
        yield from ((name, ColumnUse(port, name, "identity")) for name in schema.names)


def _late_input(spec: OperatorSpec, function: Generative, output: str, inputs: Schemas) -> Schemas:
    """Return the input whose late records a port passes on."""
    of = dict(zip(function.outputs, spec.inputs))[output]
    return {port: schema for port, schema in inputs.items() if port == of}


def _aggregated(run: Aggregate, inputs: Schemas) -> Iterator[tuple[str, ColumnUse]]:
    for port, schema in inputs.items():
        for name in (*BOUNDS, *run.by):
            if name in schema.names:
                yield name, ColumnUse(port, name, "identity")
        for made, (name, _) in run.columns.items():
            if name in schema.names:
                yield made, ColumnUse(port, name, "aggregation")


def _joined(run: Join, spec: OperatorSpec, function: Generative, inputs: Schemas) -> Iterator[tuple[str, ColumnUse]]:
    left, right = spec.inputs
    if left in inputs:
        yield from _same({left: inputs[left]})
    if left in inputs and right in inputs:
        renamed = run.renamed(inputs[left].names, inputs[right].names)
        for name in inputs[right].names:
            # Where the join is in a window of time, the bounds that only the other side has are not those it makes.
            if not (name in BOUNDS and name in renamed and isinstance(function.window, EventTime)):
                yield renamed.get(name, name), ColumnUse(right, name, "identity")
