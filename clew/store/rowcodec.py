"""How runs are written in the columns of a log: compact JSON that SQL can also read.

Headers are one flat array, [rows, size, rows, size, ...], so that one `json_each` expands a run. The end of
a stream has its row count complemented (-1 for 0): a flag of its own would cost every event a value.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from clew.ids import InputSetId, Port
from clew.protocol.rows import AsideRow, Assignment, Bodies, Every, Header, Listed, Own, WriteRow, label_of

_compact = json.JSONEncoder(separators=(",", ":")).encode
_sorted = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode

#: Columns of a run of bodies: count, size, lengths, checksums, file, start, data.
BodyColumns = tuple[int, int, str, str, str | None, int, bytes | None]

#: Columns of an assignment: Input Set, size, skip. Size 0: all events belong to the one Input Set.
AssignmentColumns = tuple[int, int, int]

#: Columns of what was set aside, as `decode_aside` takes them.
ASIDE_COLUMNS = "number, input_set, label, state, events, records, error, status, retried_as"


def encode_json(value: Any) -> str:
    """Write JSON with sorted keys, so that equal values are equal texts in every backend."""
    return _sorted(value)


def encode_headers(headers: Sequence[Header]) -> str:
    """Write rows and sizes of a run of headers."""
    flat: list[int] = []
    for header in headers:
        flat.append(~header.rows if header.end else header.rows)
        flat.append(header.size)
    return _compact(flat)


def encode_facts(headers: Sequence[Header]) -> str | None:
    """Write the facts of a run, by receiver and fingerprint: neither is repeated for each event."""
    groups: dict[tuple[str, str], tuple[list[int], list[Any]]] = {}
    for index, header in enumerate(headers):
        for receiver, (fingerprint, facts) in header.facts.items():
            indexes, values = groups.setdefault((receiver, fingerprint), ([], []))
            indexes.append(index)
            values.append(facts)
    if not groups:
        return None
    return _compact(
        [
            [receiver, fingerprint, None if len(indexes) == len(headers) else indexes, values]
            for (receiver, fingerprint), (indexes, values) in groups.items()
        ]
    )


def decode_headers(headers: str, facts: str | None) -> tuple[Header, ...]:
    """Read a run of headers."""
    flat = json.loads(headers)
    rows, sizes = flat[0::2], flat[1::2]
    mappings = _decode_facts(facts, len(rows))
    return tuple(
        Header(r, size, mapping) if r >= 0 else Header(~r, size, mapping, True)
        for r, size, mapping in zip(rows, sizes, mappings)
    )


def _decode_facts(text: str | None, count: int) -> list[dict[str, tuple[str, Any]]]:
    mappings: list[dict[str, tuple[str, Any]]] = [{} for _ in range(count)]
    for receiver, fingerprint, indexes, values in json.loads(text) if text else ():
        for index, value in zip(range(count) if indexes is None else indexes, values):
            mappings[index][receiver] = (fingerprint, value)
    return mappings


def decode_sizes(headers: str) -> list[int]:
    """Read only the sizes of a run of headers."""
    sizes: list[int] = json.loads(headers)[1::2]
    return sizes


def encode_bodies(bodies: Bodies) -> BodyColumns:
    """Write a run of bodies."""
    lengths = list(bodies.lengths)
    checksums = _compact(list(bodies.checksums))
    return len(lengths), sum(lengths), _compact(lengths), checksums, bodies.file, bodies.offset, bodies.data


def decode_bodies(columns: Sequence[Any]) -> Bodies:
    """Read a run of bodies from its columns."""
    _, _, lengths, checksums, file, start, data = columns
    return Bodies(tuple(json.loads(lengths)), tuple(json.loads(checksums)), data, file, start)


def encode_assignment(assignment: Assignment) -> list[AssignmentColumns]:
    """Write an assignment as one row per listed Input Set, or one row in all."""
    match assignment:
        case Own(first):
            return [(first, 1, 0)]
        case Every(first, size, skip):
            return [(first, size, skip)]
        case Listed(()):
            return [(0, 0, 0)]
        case Listed(sets):
            return [(input_set, 0, 0) for input_set in sets]


def sets_covered(columns: AssignmentColumns, count: int) -> tuple[int, int]:
    """Return (first, count) of the Input Sets that `count` events so assigned belong to."""
    first, size, skip = columns
    if size == 0:
        return first, 1
    low = skip // size
    return first + low, (skip + count - 1) // size - low + 1


def events_covered(columns: AssignmentColumns, count: int, input_set: int) -> tuple[int, int]:
    """Return (index of the first, count) of the events that belong to one Input Set."""
    first, size, skip = columns
    if size == 0:
        return 0, count
    start = max((input_set - first) * size - skip, 0)
    stop = min((input_set - first + 1) * size - skip, count)
    return start, stop - start


def set_of(columns: AssignmentColumns, index: int) -> InputSetId:
    """Return the Input Set of the event at `index`."""
    first, size, skip = columns
    return InputSetId(first if size == 0 else first + (skip + index) // size)


@lru_cache(1_000)  # Turns of one size have the same ones.
def encode_counts(counts: tuple[tuple[int, int], ...]) -> str:
    """Write how many events each Input Set was made into."""
    if len(counts) == 1:  # As it is of nearly all turns, and JSON takes ten times as long.
        return f"[[{counts[0][0]},{counts[0][1]}]]"
    return _compact(counts)


def decode_counts(text: str) -> tuple[tuple[int, int], ...]:
    """Read how many events each Input Set was made into."""
    return tuple((outputs, repeat) for outputs, repeat in json.loads(text))


def encode_named(write: WriteRow) -> str:
    """Write the events that a write action names."""
    return _compact([[port.operator, port.name, first, count] for port, first, count in write.events])


def decode_named(text: str) -> tuple[tuple[Port, int, int], ...]:
    """Read the events that a write action names."""
    return tuple((Port(operator, name), first, count) for operator, name, first, count in json.loads(text))


def decode_aside(
    number: int, input_set: int, label: str, state: str, events: str, records: str | None, error: str, *rest: Any
) -> AsideRow:
    """Read what was set aside from its columns."""
    spans = tuple((port, first, count, seq) for port, first, count, seq in json.loads(events))
    places = None if records is None else tuple(json.loads(records))
    known = (number, InputSetId(input_set), label_of(label), json.loads(state), spans, places, json.loads(error))
    return AsideRow(*known, *rest)
