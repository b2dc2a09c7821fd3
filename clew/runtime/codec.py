"""Bodies of events: Arrow IPC record batches without their schema, which is stored once per port.

Lifetime: what `decode` returns shares memory with the data it was given and keeps that alive, so a
caller may drop its own reference. A memoryview stays pinned for as long: its owner (a `bytearray`,
a memory map) cannot be resized or closed before the table is gone, and must not be overwritten.
"""

import zlib
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.ipc as ipc

from clew.errors import ClewError

Data: TypeAlias = bytes | memoryview


@dataclass(eq=False)
class BodyTooLarge(ClewError):
    """A column of one event is longer than an Arrow array may be."""

    size: int

    def __str__(self) -> str:
        return (
            f"an event of {self.size:,} bytes does not fit one record batch, whose columns hold 2 GiB of text each; "
            "make smaller events, for example with rows_per_event"
        )


def encode(table: pa.Table) -> bytes:
    """Return the records as one IPC record batch without a schema; the result shares no memory."""
    data: bytes = _batch(table).serialize().to_pybytes()
    return data


def decode(data: Data, schema: pa.Schema) -> pa.Table:
    """Read what `encode` wrote; zero-copy, see the lifetime above."""
    return pa.Table.from_batches([ipc.read_record_batch(pa.py_buffer(data), schema)])


def encode_stream(table: pa.Table) -> bytes:
    """Return the records as an IPC stream with their schema, for what belongs to no port."""
    out = pa.BufferOutputStream()
    with ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    data: bytes = out.getvalue().to_pybytes()
    return data


def decode_stream(data: Data) -> pa.Table:
    """Read what `encode_stream` wrote; zero-copy, see the lifetime above."""
    with ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def checksum(data: Data) -> int:
    """Return the number that a body is known by; it finds damage, not forgery."""
    return zlib.crc32(data)


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    raise BodyTooLarge(table.nbytes)
