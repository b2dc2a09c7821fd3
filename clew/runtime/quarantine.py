"""What functions fail on, as people ask for it."""

from dataclasses import dataclass

import pyarrow as pa

from clew.ids import EventId, Port
from clew.pipeline.graph import Graph
from clew.pipeline.schema import from_bytes
from clew.pipeline.unplaced import UNPLACED
from clew.protocol.rows import AsideRow
from clew.runtime.bodies import load
from clew.runtime.codec import decode
from clew.store.base import Store


@dataclass(frozen=True)
class Quarantined:
    """Something that was set aside: an Input Set, or records of it."""

    operator: str
    row: AsideRow
    #: The names of its events, shortened.
    events: str

    @property
    def id(self) -> str:
        return f"{self.operator}#{self.row.number}"

    @property
    def placed(self) -> bool:
        """Whether its events have a place in the operator's Input Sets, so that it can be tried again."""
        return self.row.label[0] != UNPLACED

    @property
    def open(self) -> bool:
        """Whether it is not resolved yet."""
        return self.row.status in ("held", "retry", "drop")


def quarantined(graph: Graph, store: Store) -> list[Quarantined]:
    """Return everything that was set aside, by operator and in order."""
    return [Quarantined(name, row, _events(graph, name, row)) for name in graph.operators for row in store.asides(name)]


def _events(graph: Graph, operator: str, row: AsideRow) -> str:
    names = []
    for port, first, count, _ in row.events[:3]:
        name = str(EventId(graph.operators[operator].inputs[port], first))
        names.append(name if count == 1 else f"{name}..{first + count - 1}")
    places = "" if row.records is None else f" record {', '.join(map(str, row.records))}"
    return ", ".join(names) + (" ..." if len(row.events) > 3 else "") + places


def records_of(graph: Graph, store: Store, one: Quarantined, root: str | None) -> dict[str, pa.Table]:
    """Return the records that were set aside, by input port; nothing where they are collected."""
    found: dict[str, list[pa.Table]] = {}
    for port, first, count, _ in one.row.events:
        sender: Port = graph.operators[one.operator].inputs[port]
        schema = store.schema(sender)
        assert schema is not None, f"{sender} has events but no schema"
        for run in store.events(sender, first, count):
            found.setdefault(port, []).extend(decode(body, from_bytes(schema)) for body in load(root, run.bodies))
    tables = {port: pa.concat_tables(parts) for port, parts in found.items()}
    if one.row.records is None:
        return tables
    return {port: table.take(pa.array(one.row.records, pa.int64())) for port, table in tables.items()}
