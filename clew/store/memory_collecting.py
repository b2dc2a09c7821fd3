"""Garbage collection of the log in memory (LOG.io, Section 3.6), by looking through all its rows."""

from collections.abc import Mapping, Sequence

from clew.ids import Port, writes_port
from clew.store.base import Collected
from clew.store.memory_rows import UNRESOLVED, Rows


class Collection:
    """Forgets what is done; the caller holds the lock."""

    def __init__(self, rows: Rows, senders: Mapping[Port, Port], receivers: Mapping[Port, Sequence[Port]]) -> None:
        self._rows = rows
        #: The sender of each receiving port, and the receivers of each sending one.
        self._senders = senders
        self._receivers = receivers

    def collect(self, grace: int, keep: Mapping[Port, int]) -> Collected:
        """Forget it, as `Store.collect` says."""
        before = referenced_files(self._rows)
        removed = 0
        for port in list(self._rows.sent):
            low = self._low_water(port, grace)
            removed += self._collect_port(port, min(low, keep[port] - 1) if port in keep else low)
        self._collect_writes(keep)
        self._collect_sets()
        return Collected(removed, tuple(sorted(before - referenced_files(self._rows))))

    def _low_water(self, port: Port, grace: int) -> int:
        """Return the number up to which all events of `port` are done."""
        last = self._rows.last_sent.get(port, 0) - grace
        named = [
            first
            for writes in self._rows.writes.values()
            for row, status in writes.values()
            if status == "undone"
            for sender, first, _ in row.events
            if sender == port
        ]
        for receiver in self._receivers.get(port, ()):
            named += self._held(receiver)
            entries = self._rows.entries.get(receiver, {})
            undone = [n for n, row in entries.items() if any(e.status == "undone" for e in row)]
            named += undone
        return min([last, *(number - 1 for number in named)])

    def _held(self, receiver: Port) -> list[int]:
        """Return the first events of a port that what was set aside still needs."""
        return [
            first
            for row in self._rows.asides.get(receiver.operator, {}).values()
            if row.status in UNRESOLVED
            for name, first, _, _ in row.events
            if name == receiver.name
        ]

    def _collect_port(self, port: Port, upto: int) -> int:
        gone = [number for number in self._rows.sent[port] if number <= upto]
        self._rows.collected[port] = max(self._rows.collected.get(port, 0), upto)
        self._wear(port, upto)
        for number in gone:
            del self._rows.sent[port][number]
            for receiver in self._receivers.get(port, ()):
                entries = self._rows.entries.get(receiver, {}).pop(number, ())
                taken = [entry.input_set or 0 for entry in entries]
                self._rows.worn_taken[receiver] = max([self._rows.worn_taken.get(receiver, 0), *taken])
        kept = [pair for pair in self._rows.lineage.get(port, []) if pair[0] > upto]
        self._rows.lineage[port] = kept
        return len(gone)

    def _wear(self, made: Port, upto: int) -> None:
        """Remember the last Input Set of which an event up to a number was made."""
        sets = [input_set for number, input_set in self._rows.lineage.get(made, []) if number <= upto]
        self._rows.worn_made[made] = max([self._rows.worn_made.get(made, 0), *sets])

    def _collect_writes(self, keep: Mapping[Port, int]) -> None:
        for port, writes in self._rows.writes.items():
            made = Port(port.operator, writes_port(port.name))
            undone = min((n for n, (_, status) in writes.items() if status == "undone"), default=None)
            gone = {n for n in writes if n < keep.get(made, n + 1) and (undone is None or n < undone)}
            self._rows.collected_writes[port] = max({*gone, self._rows.collected_writes.get(port, 0)})
            self._rows.writes[port] = {n: pair for n, pair in writes.items() if n not in gone}
            self._wear(made, self._rows.collected_writes[port])
            left = [pair for pair in self._rows.lineage.get(made, []) if pair[0] > self._rows.collected_writes[port]]
            self._rows.lineage[made] = left

    def _collect_sets(self) -> None:
        """Forget the Input Sets that are done and of which no event is left."""
        for operator, finished in self._rows.finished.items():
            used = {
                entry.input_set
                for receiver, entries in self._rows.entries.items()
                if receiver.operator == operator
                for row in entries.values()
                for entry in row
            }
            gone = finished - used
            labels = self._rows.labels.get(operator, {})
            self._rows.labels[operator] = {n: label for n, label in labels.items() if n not in gone}
            events = self._rows.state_events.get(operator, {})
            self._rows.state_events[operator] = {s: pair for s, pair in events.items() if pair[0] not in gone}
            for key in [k for k, (_, s) in self._rows.read_events.items() if k[0] == operator and s in gone]:
                del self._rows.read_events[key]
            self._collect_decisions(operator)

    def _collect_decisions(self, operator: str) -> None:
        """Forget what was decided before the first event whose entries are left, once events before it are forgotten.

        While all events are there, a run can be followed from its start, and that takes all decisions.
        """
        inputs = [sender for receiver, sender in self._senders.items() if receiver.operator == operator]
        if not any(self._rows.collected.get(sender) for sender in inputs):
            return
        left = [
            entry.seq
            for receiver, entries in self._rows.entries.items()
            if receiver.operator == operator
            for row in entries.values()
            for entry in row
            if entry.input_set is not None
        ]
        decisions = self._rows.decisions.get(operator, {})
        kept = {seq: text for seq, text in decisions.items() if left and seq >= min(left)}
        self._rows.decisions[operator] = kept


def referenced_files(rows: Rows) -> set[str]:
    """Return the body files that rows name."""
    bodies = [b for events in rows.sent.values() for _, runs in events.values() for b in runs]
    bodies += [b for writes in rows.writes.values() for row, _ in writes.values() for b in row.bodies]
    bodies += [row.effect for row, _ in rows.read_events.values() if row.effect is not None]
    return {b.file for b in bodies if b.file is not None}
