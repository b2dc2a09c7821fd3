"""Windows, predicates, dataclasses and `depends=` against columns: what cannot fit is found before anything starts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from clew.errors import ClewError, GraphError
from clew.ids import Port
from clew.pipeline.enriched import Enriched
from clew.pipeline.hints import OfDataclass, misfit
from clew.pipeline.keys import check_key
from clew.pipeline.predicates import filtered
from clew.pipeline.records import Branch, Filter, PerRecord
from clew.pipeline.times import BOUNDS

if TYPE_CHECKING:
    from clew.pipeline.graph import Generative, OperatorSpec


def misfits(specs: "Sequence[OperatorSpec]") -> Iterator[GraphError]:
    """Yield what an operator asks of an input whose schema is declared and that has no such columns."""
    declared = {Port(spec.name, port): schema for spec in specs for port, schema in spec.schemas.items()}
    for spec in specs:
        for sender in spec.inputs.values():
            for function in spec.functions if sender in declared else ():
                try:
                    _try(function, declared[sender])
                except ClewError as refused:
                    yield _cannot_take(spec, sender, str(refused))
    yield from _not_built(specs)
    yield from _misnamed(specs)


def _cannot_take(spec: "OperatorSpec", sender: Port, why: str) -> GraphError:
    return GraphError(f"{spec.name} cannot take what {sender} is declared to send: {why}", spec.location)


def _try(function: "Generative", schema: pa.Schema) -> None:
    window = function.window
    window.extend(schema)
    for name in getattr(window, "columns", ()):
        check_key(schema, name, type(window).__name__)
    if isinstance(function.run, Filter):
        filtered(schema.empty_table(), function.run.predicate)


def _not_built(specs: "Sequence[OperatorSpec]") -> Iterator[GraphError]:
    """Yield which functions take dataclasses that the records of their inputs, as declared, cannot be made."""
    by_name = {spec.name: spec for spec in specs}
    for spec in specs:
        for record in dict.fromkeys(_records(spec)):
            for sender in spec.inputs.values():
                schema = _told(by_name, sender)
                wrong = None if schema is None else misfit(record, schema)
                if wrong is not None:
                    yield _cannot_take(spec, sender, wrong)


def _misnamed(specs: "Sequence[OperatorSpec]") -> Iterator[GraphError]:
    by_name = {spec.name: spec for spec in specs}
    for spec in specs:
        inputs = {port: _told(by_name, sender) for port, sender in spec.inputs.items()}
        outputs = {port: _told(by_name, Port(spec.name, port)) for port in spec.outputs}
        # What is written is known of no connection.
        wrong = misnamed(spec, inputs, {**outputs, **dict.fromkeys(spec.sinks)})
        if wrong is not None:
            yield GraphError(wrong, spec.location)


#: Of ports, the schemas as far as they are known.
Known = Mapping[str, pa.Schema | None]


def misnamed(spec: "OperatorSpec", inputs: Known, outputs: Known) -> str | None:
    """Say what `depends=` of an operator names that is not there; of ports with unknown columns nothing is said."""
    for made, of in spec.settings.depends.items():
        if isinstance(of, str):
            pairs, ports = {made: of}, inputs
        elif made in inputs:
            pairs, ports = of, {made: inputs[made]}
        else:
            return f"depends= of {spec.name} names the input port {made}; expected one of {', '.join(inputs)}"
        for output, column in pairs.items():
            for name, side, known in ((column, "input", ports), (output, "output", outputs)):
                columns = _columns(known)
                if columns is not None and name not in (*columns, *BOUNDS):
                    return (
                        f"depends= of {spec.name} names column {name}, which no {side} of it has: its columns there "
                        f"are {', '.join(columns)}; name one of these, or leave it out"
                    )
    return None


def _columns(known: Known) -> list[str] | None:
    """Return the columns of all these ports, or None where some are not known."""
    found: dict[str, None] = {}
    for schema in known.values():
        if schema is None:
            return None
        found |= dict.fromkeys(schema.names)
    return list(found) or None


def _records(spec: "OperatorSpec") -> Iterator[type]:
    """Yield the dataclasses that functions of single records take."""
    for run in (function.run for function in spec.functions):
        if isinstance(run, Enriched):
            yield from run.records
        if isinstance(run, PerRecord) and run.record is not None:
            yield run.record
        if isinstance(run, Branch):
            yield from (one.record for one in run.predicates.values() if isinstance(one, OfDataclass))


def _told(specs: "Mapping[str, OperatorSpec]", port: Port, seen: frozenset[Port] = frozenset()) -> pa.Schema | None:
    """Return the schema that a port is declared with, or those whose records it passes on, where they agree."""
    spec = specs.get(port.operator)
    if spec is None or port in seen:
        return None
    if port.name in spec.schemas:
        return spec.schemas[port.name]
    found = [_told(specs, sender, seen | {port}) for sender in spec.passed(port.name)]
    return found[0] if found and all(one == found[0] for one in found) else None
