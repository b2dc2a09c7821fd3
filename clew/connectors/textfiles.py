"""CSV and JSON lines, read from a byte offset on, with types that are fixed once.

A record is a line, or several where a quoted CSV value holds line breaks. Blank lines hold no record,
except in a CSV file of one column, where they are nulls. CSV files begin with a header; an empty value
is null and `""` is the empty string. In JSON lines a missing field is null, and a string is never taken for
a date. Text is UTF-8.
"""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from clew.connectors.cures import DECLARED_ANEW
from clew.connectors.listing import Entry, prefix_checksum
from clew.errors import SourceFailed

_INFERENCE_BYTES = 1 << 20
_LARGEST_BLOCK = (1 << 31) - 1
_MEND = f"mend the file and run again: the run goes on here; or declare what the columns hold {DECLARED_ANEW}"

Parse = Callable[[list[bytes]], pa.Table]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to read: when the user declared them, others in the file are left out on purpose."""

    schema: pa.Schema
    declared: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one event, and where the next one begins."""

    table: pa.Table
    row: int
    byte: int
    #: The checksum of the file up to there.
    checksum: int = 0


def read(entry: Entry, format: str, columns: Columns, row: int, byte: int, checksum: int, rows: int) -> Iterator[Batch]:
    """Yield a file's records from `byte` on, `rows` at a time."""
    entry = entry.mended(byte, checksum)
    with _opened(entry) as file:
        parse, records = _prepare(entry, format, columns, file, byte)
        while True:
            start = file.tell()
            batch = list(islice(records, rows))
            if not batch:
                break
            table = _parsed(entry, parse, batch, row, start)
            row, end = row + len(batch), file.tell()
            checksum, byte = prefix_checksum(entry.path, end, byte, checksum), end
            yield Batch(table, row, end, checksum)
    # A file that changed while it was read is refused before the slice counts.
    entry.check()


def infer(entries: list[Entry], format: str) -> pa.Schema:
    """Choose types from the first block of the first file that has records; later files must fit them."""
    return inferred(entries, format)[0]


def inferred(entries: list[Entry], format: str) -> tuple[pa.Schema, bool]:
    """Choose types as `infer` does, and say whether there was any record to choose them from."""
    names: list[str] = []
    for entry in entries:
        with _opened(entry) as file:
            parse, records = _prepare(entry, format, None, file, 0)
            names = names or (_header(entry, file)[0] if format == "csv" else [])
            start = file.tell()
            block = list(_until(records, _INFERENCE_BYTES))
            if block:
                found = _parsed(entry, parse, block, 0, start).schema
                settle = _settled_csv if format == "csv" else _settled_json
                return pa.schema([(field.name, settle(field.type)) for field in found]), True
    return pa.schema([(name, pa.string()) for name in names]), False


def _prepare(
    entry: Entry, format: str, columns: Columns | None, file: BinaryIO, byte: int
) -> tuple[Parse, Iterator[bytes]]:
    """Position the file and return how its records are found and parsed."""
    if format == "jsonl":
        file.seek(max(byte, _bom(file)))
        return lambda batch: _parse_json(batch, columns), _json_records(file)
    names, begin = _header(entry, file)
    if columns is not None:
        _check_header(entry, names, columns)
    file.seek(max(byte, begin))
    single = len(names) == 1
    return lambda batch: _parse_csv(batch, names, columns), _csv_records(entry, file, blank_is_record=single)


def _opened(entry: Entry) -> BinaryIO:
    try:
        return open(entry.path, "rb", buffering=1 << 18)
    except OSError as error:
        raise SourceFailed(entry.path, f"it cannot be opened ({error})", "let Clew read it, and run again") from None


def _bom(file: BinaryIO) -> int:
    file.seek(0)
    return 3 if file.read(3) == b"\xef\xbb\xbf" else 0


def _until(records: Iterator[bytes], size: int) -> Iterator[bytes]:
    for record in records:
        yield record
        size -= len(record)
        if size <= 0:
            return


def _json_records(file: BinaryIO) -> Iterator[bytes]:
    blank = b""
    for line in file:
        if line.isspace():
            blank += line
        else:
            # Blank lines stay with the record after them, so that lines can be counted in an error.
            yield blank + line
            blank = b""


def _csv_records(entry: Entry, file: BinaryIO, *, blank_is_record: bool) -> Iterator[bytes]:
    record, blank = b"", b""
    for line in file:
        if record or line.count(b'"') % 2:
            record += line
            # An even number of quotes means that every quoted value is closed.
            if record.count(b'"') % 2:
                continue
            line, record = record, b""
        elif not blank_is_record and line in (b"\n", b"\r\n"):
            blank += line
            continue
        yield blank + line
        blank = b""
    if record:
        line_number = _lines_before(entry, file.tell() - len(record)) + 1
        raise SourceFailed(entry.path, f"the quote opened in line {line_number} is never closed", _MEND)


def _header(entry: Entry, file: BinaryIO) -> tuple[list[str], int]:
    """Return the column names of a CSV file and where its records begin."""
    file.seek(_bom(file))
    first = next(_csv_records(entry, file, blank_is_record=False), b"")
    if not first.strip(b"\r\n"):
        raise SourceFailed(entry.path, "it is empty, expected a header line with the column names", _MEND)
    try:
        lines = csv.reader(io.StringIO(first.decode("utf-8").lstrip("\r\n"), newline=""))
        names, more = next(lines), any(lines)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceFailed(entry.path, f"line 1 is no header ({error})", _MEND) from None
    if more:
        raise SourceFailed(
            entry.path, "its lines end with a carriage return alone, expected line feeds",
            "convert it, for example with tr '\\r' '\\n', and run again",
        )  # fmt: skip
    if len(set(names)) < len(names):
        raise SourceFailed(entry.path, f"line 1 names a column twice: {', '.join(names)}", _MEND)
    return names, file.tell()


def _check_header(entry: Entry, names: list[str], columns: Columns) -> None:
    missing = [name for name in columns.schema.names if name not in names]
    extra = [] if columns.declared else [name for name in names if name not in columns.schema.names]
    if missing or extra:
        raise SourceFailed(
            entry.path,
            f"line 1 names the columns {', '.join(names)}, expected {', '.join(columns.schema.names)}",
            f"give all files the same columns, or declare those to read {DECLARED_ANEW}",
        )


def _parse_csv(batch: list[bytes], names: list[str], columns: Columns | None) -> pa.Table:
    data = b"".join(batch)
    schema = columns.schema if columns else None
    return pa.csv.read_csv(
        io.BytesIO(data),
        read_options=pa.csv.ReadOptions(
            column_names=names, use_threads=False, block_size=min(len(data) + 1, _LARGEST_BLOCK)
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=",", quote_char='"', double_quote=True, newlines_in_values=True,
            ignore_empty_lines=len(names) > 1,
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=schema, include_columns=schema.names if schema is not None else None, null_values=[""],
            strings_can_be_null=True, quoted_strings_can_be_null=False, check_utf8=True,
            true_values=["true", "True", "TRUE", "1"], false_values=["false", "False", "FALSE", "0"],
        ),
    )  # fmt: skip


def _parse_json(batch: list[bytes], columns: Columns | None) -> pa.Table:
    data = b"".join(batch)
    asked, unexpected = None, "infer"
    if columns is not None:
        asked = pa.schema([(field.name, _json_carrier(field.type)) for field in columns.schema])
        unexpected = "ignore" if columns.declared else "error"
    table = pa.json.read_json(
        io.BytesIO(data),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=min(len(data) + 1, _LARGEST_BLOCK)),
        parse_options=pa.json.ParseOptions(
            explicit_schema=asked, newlines_in_values=False, unexpected_field_behavior=unexpected
        ),
    )
    # The parser takes any bytes for text; this looks at them.
    table.validate(full=True)
    return table if columns is None else table.cast(columns.schema)


def _json_carrier(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse: the JSON parser has no dates and times, but text can be cast to them."""
    return pa.string() if pa.types.is_date(kind) or pa.types.is_time(kind) else kind


def _parsed(entry: Entry, parse: Parse, batch: list[bytes], row: int, start: int) -> pa.Table:
    table, error = _attempt(parse, batch)
    if table is not None:
        return table
    good = _longest_good(parse, batch)
    _, why = _attempt(parse, batch[: good + 1])
    bad = batch[good]
    blank = len(bad) - len(bad.lstrip(b"\r\n"))
    line = 1 + _lines_before(entry, start) + sum(r.count(b"\n") for r in batch[:good]) + bad[:blank].count(b"\n")
    raise SourceFailed(entry.path, f"line {line} (record {row + good + 1}) is broken: {why or error}", _MEND)


def _attempt(parse: Parse, batch: list[bytes]) -> tuple[pa.Table | None, str]:
    try:
        table = parse(batch)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        return None, str(error)
    if table.num_rows != len(batch):
        return None, "it is not exactly one record (a quote inside a value, or two records in one line)"
    return table, ""


def _longest_good(parse: Parse, batch: list[bytes]) -> int:
    """Return how many records at the start of the batch can be parsed, by bisection."""
    good, bad = 0, len(batch)
    while bad - good > 1:
        middle = (good + bad) // 2
        if _attempt(parse, batch[:middle])[0] is None:
            bad = middle
        else:
            good = middle
    return good


def _lines_before(entry: Entry, byte: int) -> int:
    """Count the lines before a byte; only an error needs them, so only an error reads the file for them."""
    lines = 0
    with open(entry.path, "rb") as file:
        while byte > 0 and (block := file.read(min(byte, 1 << 20))):
            lines += block.count(b"\n")
            byte -= len(block)
    return lines


def _settled_csv(kind: pa.DataType) -> pa.DataType:
    """Return the type to fix for an inferred one: whole-second or nanosecond guesses become microseconds."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.string() if pa.types.is_null(kind) or pa.types.is_time(kind) else kind


def _settled_json(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled_json(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _settled_json(field.type)) for field in kind])
    return kind
