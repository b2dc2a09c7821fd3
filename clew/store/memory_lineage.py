"""What the log in memory answers to lineage: by looking through all its rows, which are those of the paper."""

import json
import threading
from typing import TYPE_CHECKING, Any

from clew.ids import NONE_SET, WRITES, Capture, InputSetId, Port, writes_port
from clew.protocol.rows import AsideRow, Label, Member, ReadActionRow, ReadEventRow, WriteRow
from clew.store.base import Worn

if TYPE_CHECKING:
    from clew.store.base import Topology
    from clew.store.memory_rows import Rows


class MemoryLineage:
    """Answers lineage from rows in memory."""

    _lock: threading.RLock
    _rows: "Rows"
    _topology: "Topology | None"

    def captures(self) -> dict[str, Capture]:
        return dict(self._topology.captures) if self._topology is not None else {}

    def extent(self, port: Port) -> tuple[int, int]:
        with self._lock:
            for connection, last in self._rows.last_write.items():
                if port == Port(connection.operator, writes_port(connection.name)):
                    return self._rows.collected_writes.get(connection, 0), last
            return self._rows.collected.get(port, 0), self._rows.last_sent.get(port, 0)

    def ends(self, port: Port) -> bool:
        with self._lock:
            sent = self._rows.sent.get(port, {})
            return bool(sent) and sent[max(sent)][0].end

    def worn(self, operator: str) -> Worn:
        with self._lock:
            rows = (self._rows.worn_taken, self._rows.worn_made)
            taken, made = ({p.name: n for p, n in own.items() if p.operator == operator and n} for own in rows)
            return Worn(taken, made)

    def origins(self, port: Port, first: int, count: int) -> list[tuple[int, InputSetId]]:
        with self._lock:
            return sorted(pair for pair in self._rows.lineage.get(port, []) if first <= pair[0] < first + count)

    def inputs_of(self, operator: str, first: InputSetId, count: int) -> list[Member]:
        with self._lock:
            found = [
                Member(entry.seq, receiver, entry.number, 1, entry.input_set)
                for receiver, entries in self._rows.entries.items()
                if receiver.operator == operator
                for row in entries.values()
                for entry in row
                if entry.input_set is not None and first <= entry.input_set < first + count
            ]
            return sorted(found, key=lambda member: (member.seq, member.input_set))

    def joined(self, receiver: Port, first: int, count: int) -> list[tuple[int, InputSetId]]:
        with self._lock:
            return sorted(
                (entry.number, entry.input_set)
                for number, row in self._rows.entries.get(receiver, {}).items()
                if first <= number < first + count
                for entry in row
                if entry.input_set
            )

    def passed_over(self, receiver: Port, first: int, count: int) -> list[int]:
        with self._lock:
            return sorted(
                number
                for number, row in self._rows.entries.get(receiver, {}).items()
                if first <= number < first + count and all(entry.input_set == NONE_SET for entry in row)
            )

    def outputs_of(self, operator: str, first: InputSetId, count: int) -> list[tuple[Port, int, InputSetId]]:
        with self._lock:
            return sorted(
                (port, number, input_set)
                for port, pairs in self._rows.lineage.items()
                if port.operator == operator
                for number, input_set in pairs
                if first <= input_set < first + count
            )

    def reads_of(self, operator: str, first: InputSetId, count: int) -> list[tuple[InputSetId, ReadEventRow]]:
        with self._lock:
            found = [
                (input_set, event)
                for (owner, _, _), (event, input_set) in self._rows.read_events.items()
                if owner == operator and input_set is not None and first <= input_set < first + count
            ]
            return sorted(found, key=lambda pair: (pair[1].connection, pair[1].action))

    def read_action(self, operator: str, action: int) -> ReadActionRow | None:
        with self._lock:
            rows = self._rows.read_actions.get(operator, {}).values()
            return next((row for row in rows if row.action == action), None)

    def write_action(self, port: Port, number: int) -> WriteRow | None:
        with self._lock:
            writes = self._rows.writes.get(Port(port.operator, port.name.removeprefix(WRITES)), {})
            return writes[number][0] if number in writes else None

    def made_before(self, port: Port, time: float) -> int:
        with self._lock:
            return max((n for n, made in self._rows.times.get(port, {}).items() if made < time), default=0)

    def bytes_from(self, port: Port, number: int) -> int:
        with self._lock:
            return sum(header.size for n, (header, _) in self._rows.sent.get(port, {}).items() if n >= number)

    def undone_from(self, receiver: Port) -> int:
        with self._lock:
            entries = self._rows.entries.get(receiver, {})
            undone = [number for number, row in entries.items() if any(entry.status == "undone" for entry in row)]
            return min(undone, default=max({self._rows.last_acknowledged.get(receiver, 0), *entries}) + 1)

    def first_set(self, port: Port, number: int) -> InputSetId | None:
        with self._lock:
            return min((s for n, s in self._rows.lineage.get(port, []) if n >= number), default=None)

    def first_inputs(self, operator: str, input_set: InputSetId) -> dict[str, int]:
        with self._lock:
            found: dict[str, int] = {}
            for receiver, entries in self._rows.entries.items():
                for number, row in entries.items() if receiver.operator == operator else ():
                    if any(entry.input_set is not None and entry.input_set >= input_set for entry in row):
                        found[receiver.name] = min(number, found.get(receiver.name, number))
            return found

    def asides_of(self, operator: str, first: InputSetId, count: int) -> list[AsideRow]:
        with self._lock:
            rows = sorted(self._rows.asides.get(operator, {}).items())
            return [row for _, row in rows if first <= row.input_set < first + count]

    def retried_as(self, operator: str, input_set: InputSetId) -> AsideRow | None:
        with self._lock:
            rows = sorted(self._rows.asides.get(operator, {}).items())
            return next((row for _, row in rows if row.retried_as == input_set), None)

    def label(self, operator: str, input_set: InputSetId) -> Label | None:
        with self._lock:
            return self._rows.labels.get(operator, {}).get(input_set)

    def seen(self, operator: str, input_set: InputSetId) -> Any:
        with self._lock:
            rows = self._rows.state_events.get(operator, {}).values()
            return next((json.loads(text) for number, text in rows if number == input_set), None)
