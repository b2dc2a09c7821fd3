"""How one write action becomes one file: whole or not at all, under a name that never changes."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv

from clew.connectors.cures import before_the_sink
from clew.connectors.jsonvalues import encoded
from clew.disk import make_directory, sync_directory
from clew.errors import SinkFailed
from clew.faultpoint import fault_point
from clew.pipeline.contracts import WriteAction

EXTENSIONS = {"parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl"}


def target(directory: str, format: str, action: WriteAction) -> str:
    """Return the path of a write action's file."""
    return os.path.join(directory, name_of(directory, action) + EXTENSIONS[format])


def name_of(directory: str, action: WriteAction) -> str:
    """Return a write action's name, if a file can have it."""
    if os.path.basename(action.name) != action.name or action.name.startswith("."):
        raise SinkFailed(directory, f"{action.name!r} cannot name a file in it", "rename the operator or the run")
    return action.name


def write_file(directory: str, format: str, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    """Write a file beside its place, make it durable, and move it there in one step."""
    final = target(directory, format, action)
    with explained(directory, os.path.basename(final)):
        make_directory(directory)
        put(final, action.operator, lambda out: fill(format, out, tables, schema))
        sync_directory(directory)
    fault_point("sink-after-commit", action.operator)


@contextlib.contextmanager
def explained(directory: str, what: str) -> Iterator[None]:
    """Raise SinkFailed for what can go wrong while files are written."""
    try:
        yield
    except OSError as error:
        raise SinkFailed(
            directory, f"{what} cannot be written ({error})",
            "mend the cause and run again: the write is repeated under the same name",
        ) from error  # fmt: skip
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SinkFailed(
            directory, f"{what} cannot be written ({error})",
            before_the_sink("write another format, or change what it holds"),
        ) from error  # fmt: skip


def put(final: str, operator: str, write: Callable[[BinaryIO], None]) -> None:
    """Write a file under a temporary name and move it to its place; its content is durable then, its name not yet.

    Two attempts of one write may be under way at the same time, as Spark's speculation makes them. What another one has
    not moved yet is a leftover only when the file is in its place: then nobody needs it (W1).
    """
    temporary = _temporary(final)
    try:
        with open(temporary, "xb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        fault_point("sink-before-rename", operator)
        _move(temporary, final)
    except Exception:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _remove_leftovers(final)


def _move(temporary: str, final: str) -> None:
    try:
        os.replace(temporary, final)
    except FileNotFoundError:
        # Another attempt was faster, and has removed this one's as a leftover.
        if not os.path.exists(final):
            raise


def fill(format: str, out: BinaryIO, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    """Write the content of a file."""
    _WRITERS[format](out, tables, schema)


def is_written(final: str) -> bool:
    """Say whether a file is in its place, for good.

    Who moved it there may have failed, or died, before its name was synced; so that is done here.
    """
    if not os.path.exists(final):
        return False
    directory = os.path.dirname(final)
    try:
        make_directory(directory)
        sync_directory(directory)
    except OSError as error:
        raise SinkFailed(
            directory, f"the name {os.path.basename(final)} cannot be made durable ({error})",
            "mend the cause and run again",
        ) from error  # fmt: skip
    return True


def _temporary(final: str) -> str:
    directory, name = os.path.split(final)
    # Spark and Clew pass over names that begin with a dot.
    return os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")


def _remove_leftovers(final: str) -> None:
    """Remove what crashed attempts of the same write left behind."""
    directory, name = os.path.split(final)
    for child in os.listdir(directory):
        if child.startswith(f".{name}.") and child.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, child))


def _write_parquet(out: BinaryIO, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    # Imported here: it brings file systems along, which are large.
    import pyarrow.parquet as pq

    with pq.ParquetWriter(out, schema, compression="snappy", version="2.6") as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def _write_csv(out: BinaryIO, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    _refuse_without_text(schema, nested=True)
    options = pa.csv.WriteOptions(include_header=True, delimiter=",", quoting_style="needed")
    with pa.csv.CSVWriter(out, schema, write_options=options) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def _write_jsonl(out: BinaryIO, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    _refuse_without_text(schema, nested=False)
    for line in encoded(tables, schema):
        out.write(f"{line}\n".encode())


_WRITERS: dict[str, Callable[[BinaryIO, Iterator[pa.Table], pa.Schema], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}


def _refuse_without_text(schema: pa.Schema, *, nested: bool) -> None:
    for field in schema:
        kind = field.type
        if (nested and pa.types.is_nested(kind)) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise ValueError(f"column {field.name} of type {kind} has no text form; Parquet keeps it")
