"""Makes events of tables: a port's schema, the body, and the header with what the receivers need to know."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from clew.errors import (
    ClewError,
    TypeRefused,
)
from clew.ids import Port
from clew.pipeline.graph import Graph
from clew.pipeline.operators import OperatorLogic, WindowLogic
from clew.pipeline.schema import conform, fixed, from_bytes, normalise, to_bytes, untyped
from clew.pipeline.unplaced import Unplaced
from clew.protocol.rows import Header
from clew.protocol.step import FixSchema
from clew.runtime.codec import encode
from clew.runtime.task import Schemas, failure


class Encoder:
    """Turns tables into event bodies of a port's one schema, with headers that carry facts."""

    def __init__(self, graph: Graph, operator: str, fixed_schemas: Schemas) -> None:
        self._graph = graph
        self._operator = operator
        self._given = dict(fixed_schemas)
        # By port: the receivers that need facts, and what computes them.
        self._receivers: dict[str, list[tuple[str, Any]]] = {}
        self._schemas = {port: from_bytes(schema) for port, schema in fixed_schemas.items()}
        spec = graph.operators[operator]
        self._declared = frozenset(spec.schemas)
        for port, schema in spec.schemas.items():
            self._schemas.setdefault(port, fixed(schema))

    def encode(self, port: str, table: pa.Table) -> tuple[Header, bytes] | None:
        """Return header and body, or None for a table without records: it makes no event."""
        if table.num_rows == 0:
            return None
        schema = self._schemas.get(port)
        # Most tables have the port's schema already, which is in its normal form.
        if schema is None or not table.schema.equals(schema, check_metadata=True):
            table = normalise(table)
            if schema is None:
                schema = self._schemas[port] = self._typed(port, table.schema)
            table = conform(table, schema, f"{self._operator}.{port}", port in self._declared)
        body = encode(table)
        return Header(table.num_rows, len(body), self._facts(port, table)), body

    def _typed(self, port: str, schema: pa.Schema) -> pa.Schema:
        """Return the schema that a port is fixed to by its first event; raises where that does not tell all types."""
        for column in untyped(schema):
            if column.name not in self._graph.declared_untyped:
                why = f"{self._operator}.{port} has had nothing else there yet, and would be fixed to that for good"
                cure = f"declare schema= for {self._operator}, or cast it to the type that later values have"
                raise TypeRefused(column.name, str(column.type), why, cure)
        return schema

    def schema(self, port: str) -> pa.Schema | None:
        """Return the schema of a port: what the log has fixed, or was declared, or came first; None before that."""
        return self._schemas.get(port)

    def learned(self) -> tuple[FixSchema, ...]:
        """Return the schemas that the log does not have yet."""
        return tuple(
            FixSchema(Port(self._operator, port), to_bytes(schema))
            for port, schema in self._schemas.items()
            if port not in self._given
        )

    def _facts(self, port: str, table: pa.Table) -> dict[str, tuple[str, Any]]:
        if port not in self._receivers:
            found = self._graph.receivers(Port(self._operator, port))
            logics = [(str(receiver), self._graph.operators[receiver.operator].logic) for receiver in found]
            self._receivers[port] = [(receiver, logic) for receiver, logic in logics if logic.needs_facts]
        return {receiver: (logic.fingerprint, facts_of(logic, table)) for receiver, logic in self._receivers[port]}


def facts_of(logic: WindowLogic | OperatorLogic, table: pa.Table) -> Any:
    """Return what a receiver needs to know of an event, or why it cannot be told: that is the receiver's failure."""
    try:
        return logic.facts(table)
    except Exception as error:
        told = failure(error)
        reason = told.message if isinstance(error, ClewError) else f"{told.kind}: {told.message}"
        return Unplaced(told.record, reason, told.frames).facts()


def outputs_by_port(result: Any, outputs: Sequence[str], operator: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield (port, table) for whatever a generative function may return."""
    if result is None:
        return
    by_port = result if isinstance(result, Mapping) else {outputs[0] if outputs else "": result}
    for port, tables in by_port.items():
        if port not in outputs:
            raise ClewError(
                f"{operator} returned records for port {port!r}; it has {', '.join(outputs) or 'none'}: "
                "return records for those, or declare the port with outputs="
            )
        for table in [tables] if isinstance(tables, pa.Table) else tables:
            if isinstance(table, pa.RecordBatch):
                table = pa.Table.from_batches([table])
            if not isinstance(table, pa.Table):
                raise ClewError(
                    f"{operator} returned {type(table).__name__} on port {port}; return a pyarrow.Table, a list of "
                    "them, or a dict by port"
                )
            yield port, table
