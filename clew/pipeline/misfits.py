"""Windows and predicates against the columns that are declared: what cannot fit is found before anything starts."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from clew.errors import ClewError, GraphError
from clew.ids import Port
from clew.pipeline.keys import check_key
from clew.pipeline.predicates import filtered
from clew.pipeline.records import Filter

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
                    yield GraphError(
                        f"{spec.name} cannot take what {sender} is declared to send: {refused}", spec.location
                    )


def _try(function: "Generative", schema: pa.Schema) -> None:
    window = function.window
    window.extend(schema)
    for name in getattr(window, "columns", ()):
        check_key(schema, name, type(window).__name__)
    if isinstance(function.run, Filter):
        filtered(schema.empty_table(), function.run.predicate)
