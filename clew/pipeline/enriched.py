"""Records that a system is asked about, one by one (side-effect reads, Algorithm 4)."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from clew.errors import AnswerRefused, ClewError, OtherRead
from clew.pipeline.columns import Types
from clew.pipeline.hints import OfDataclass, check_fit
from clew.pipeline.lookups import taken
from clew.pipeline.records import Branch, PerRecord, blame, blamed
from clew.pipeline.schema import normalise

#: The name by which the function is given what reads, and that of the connection that it reads from.
READING, ASKED = "_clew_reading", "asked"


class Reading(Protocol):
    """What reads for one Input Set."""

    def ask(self, connection: str, action: str) -> pa.Table:
        """Perform a read action, or find its answer in the log."""

    def keep(self, connection: str, action: str, answer: pa.Table) -> None:
        """Have an answer logged with the Output Set, after those before it."""


class _Outside(BaseException):
    """A system could not be asked. Not an Exception: no record is to blame."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclasses.dataclass(frozen=True)
class Enriched:
    """Asks a system about each record, once for records that ask the same, and adds what it answers."""

    asks: Callable[..., str | None]
    add: Callable[..., Any] | None = None
    #: The columns of every answer, where the connection declares them.
    answers: pa.Schema | None = None
    #: The columns of the result, where they are declared.
    declared: Types = dataclasses.field(default_factory=dict)
    lookup_form: typing.ClassVar[str] = "records"

    def __call__(self, table: pa.Table, **given: Any) -> pa.Table:
        return self.over(table, given)

    @property
    def records(self) -> list[type]:
        """The dataclasses that its functions take records as."""
        return [one.record for one in (self.asks, self.add) if isinstance(one, OfDataclass)]

    def over(self, table: pa.Table, given: Mapping[str, Any], schema: pa.Schema | None = None) -> pa.Table:
        """Return all records with what was answered; raises at the first that it fails on."""
        made, failed, used = self._once(table, given, {}, stop=True)
        if failed:
            raise failed[0]
        _keep(given[READING], used)
        return made

    def sift(
        self, table: pa.Table, given: Mapping[str, Any], schema: pa.Schema | None = None, stop: bool = False
    ) -> tuple[pa.Table, list[Exception]]:
        """Do it with the records on which it does not fail; as `PerRecord.sift` does.

        Kept is what these ask for, in the order in which they do: whoever makes the Output Set again has no others.
        """
        known: dict[str, pa.Table] = {}
        failed: dict[int, Exception] = {}
        places = list(range(table.num_rows))
        while True:
            made, failures, used = self._once(table.take(pa.array(places, pa.int64())), given, known, stop=False)
            if not failures:
                break
            for failure in failures:
                index, row = blamed(failure)
                blame(failure, places[index], row)
                failed[places[index]] = failure
            places = [place for place in places if place not in failed]
        _keep(given[READING], used)
        return made, [failed[place] for place in sorted(failed)]

    def _once(
        self, table: pa.Table, given: Mapping[str, Any], known: dict[str, pa.Table], stop: bool
    ) -> tuple[pa.Table, list[Exception], dict[str, pa.Table]]:
        """Go through some records; returns also the answers that were used, in the order of their first use."""
        for record in self.records if table.num_rows else ():
            check_fit(record, table.schema)
        reading: Reading = given[READING]
        asks = partial(self.asks, **taken(self.asks, given))
        add = _first_row if self.add is None else partial(self.add, **taken(self.add, given))
        nothing = pa.table({}) if self.answers is None else normalise(self.answers.empty_table())
        #: Filled while records are asked about: what the answers tell of their columns.
        types = {**_types(nothing), **self.declared}
        used: dict[str, pa.Table] = {}

        def enrich(row: dict[str, Any]) -> Any:
            action = asks(row)
            if action is None:
                return add(row, nothing)
            if not isinstance(action, str):
                raise ClewError(
                    f"ask returned {action!r} ({type(action).__name__}), expected the text of a read action, or None "
                    "for a record that needs none; return one of these"
                )
            if action not in used:
                if action not in known:
                    known[action] = _answer(reading, action)
                used[action] = known[action]
                _learn(types, used[action])
            return add(row, used[action])

        try:
            made, failed = PerRecord(enrich, "map", declared=types).sift(table, {}, stop=stop)
        except _Outside as outside:
            raise outside.error from None
        if failed or used or self.add is not None or not table.num_rows:
            return made, failed, used
        return self._unasked(made), failed, used

    def _unasked(self, made: pa.Table) -> pa.Table:
        """Add the columns of an answer to the records of an event in which none asked for one."""
        if self.answers is None and not self.declared:
            raise ClewError(
                "no record of it asks for anything, so the columns of the answers are not known; declare them with "
                "schema= of the connection, or all columns with schema= of enrich"
            )
        for name, kind in self.declared.items():
            if name not in made.column_names:
                made = made.append_column(name, pa.nulls(made.num_rows, kind))
        return made


#: Functions that look at one record at a time: what they fail on is a record, and is told as one.
OfRecords = PerRecord | Branch | Enriched


def _answer(reading: Reading, action: str) -> pa.Table:
    try:
        return reading.ask(ASKED, action)
    except (AnswerRefused, OtherRead):
        # What was asked is refused, so that the record is to blame.
        raise
    except Exception as error:
        raise _Outside(error) from error


def _keep(reading: Reading, used: Mapping[str, pa.Table]) -> None:
    for action, answer in used.items():
        reading.keep(ASKED, action, answer)


def _types(table: pa.Table) -> dict[str, pa.DataType]:
    return dict(zip(table.column_names, table.schema.types))


def _learn(types: dict[str, pa.DataType], answer: pa.Table) -> None:
    """Let an answer tell the types of columns that nobody has declared; a null tells none."""
    for name, kind in _types(answer).items():
        if not pa.types.is_null(kind):
            types.setdefault(name, kind)


def _first_row(row: Mapping[str, Any], answer: pa.Table) -> Mapping[str, Any]:
    found = answer.slice(0, 1).to_pylist() or [dict.fromkeys(answer.column_names)]
    return {**row, **found[0]}
