"""What differs between SQL databases: one subclass of `Dialect` each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from clew.errors import SinkFailed, SourceFailed
from clew.pipeline.contracts import WriteAction

#: The table, kept in the user's database, that holds one row per writer: what was applied last, and by whom.
MARKERS = "clew_writes"


#: Makes the error to raise, from what happened and its cure.
Failed = Callable[[str, str], SinkFailed | SourceFailed]


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a result, and the types their columns have by the database's own word."""

    names: tuple[str, ...]
    schema: pa.Schema
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Marker:
    """What the database holds about a writer."""

    incarnation: int
    last: int


class Transaction(ABC):
    """A write transaction under way; leaving its context commits it, an exception rolls it back."""

    @abstractmethod
    def lock(self, action: WriteAction, table: str) -> Marker:
        """Lock the writer's marker until the end of the transaction, making it first if need be, with its table."""

    @abstractmethod
    def mark(self, action: WriteAction, last: int) -> None:
        """Set the writer's marker."""

    @abstractmethod
    def insert(self, table: str, key: tuple[str, ...], tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        """Insert rows, or replace those with the same key; of several with one key the last counts.

        Makes the table when it is missing.
        """


class Dialect(ABC):
    """One kind of database, and which one of that kind; holds settings only."""

    placeholder: ClassVar[str]

    @abstractmethod
    def describe(self) -> str:
        """Name the database, without its password."""

    @abstractmethod
    def place(self) -> str:
        """Return the URL that somebody else can read the database by, its password included."""

    @abstractmethod
    def validate(self, failed: Failed, *, write: bool) -> None:
        """Raise when the database cannot be reached."""

    @abstractmethod
    def pages(self, sql: str, parameters: Sequence[Any], schema: pa.Schema | None, size: int) -> Iterator[Page]:
        """Run a query and yield its rows `size` at a time; at least one page, which may be empty."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a write transaction."""

    @abstractmethod
    def marker(self, action: WriteAction) -> Marker | None:
        """Read the writer's marker, if there is one."""

    def literal(self, query: str) -> str:
        """Write a user's query so that it can stand in a statement with parameters."""
        return query


def quote(identifier: str) -> str:
    """Quote one identifier, as standard SQL and so both dialects do."""
    if "\0" in identifier:
        raise ValueError(f"{identifier!r} cannot be an identifier")
    return '"' + identifier.replace('"', '""') + '"'


def quote_table(name: str) -> str:
    """Quote a table's name; a dot stands between schema and table."""
    return ".".join(quote(part) for part in name.split("."))


def subquery(query: str) -> str:
    """Write a user's query as a table; the line break ends a comment that the query may end with."""
    return f"({query}\n) AS q"
