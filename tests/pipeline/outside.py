"""Sources and sinks that stand for outside systems in declarations."""

import sys
from collections.abc import Iterator

import pyarrow as pa

from clew import Observed, Sink, WriteAction


class Tap(Observed):
    """A source of nothing."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self._schema = schema

    def describe(self) -> str:
        return "a tap"

    def observe(self) -> Iterator[pa.Table]:
        return iter(())

    def schema(self) -> pa.Schema | None:
        return self._schema


class Drain(Sink):
    """A sink that can be as safe or unsafe as one asks."""

    def __init__(self, **safety: bool) -> None:
        for name, value in (safety or {"idempotent": True}).items():
            setattr(self, name, value)

    def describe(self) -> str:
        return "a drain"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        return None


def same(table: pa.Table) -> pa.Table:
    """A function that no pipeline has declared."""
    return table


def here() -> int:
    """Return the line from which it is called."""
    return sys._getframe(1).f_lineno
