"""What a source gave, against what it gives when it is read again."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from clew.errors import ClewError
from clew.ids import EventId, Port
from clew.model.certificate import RAISED, Certificate, EventWrong, Finding, Verdict, undecided, wrong
from clew.model.compare import shown
from clew.model.cuts import Cut, as_given, cut_at, in_files, in_rows, numbered
from clew.model.declared import as_of_code
from clew.model.evidence import stretches
from clew.model.holdings import CountHeld, EventsLogged, FetchOne, Holding, Numbers, ReadSlice, Records, Slice
from clew.model.outside import files_of
from clew.model.read import LogUnreadable, Unreadable
from clew.model.replay import check_sent
from clew.model.tiling import tiled
from clew.model.work import Compute, Intact, Stretch
from clew.pipeline.contracts import FilesHeld, Held, Plan, Replayable, RowsHeld
from clew.pipeline.graph import OperatorSpec

#: How many events of a source are planned at a time.
_STEP = 100_000


def check_source(spec: OperatorSpec, certificate: Certificate, compute: Compute, verdict: Verdict) -> None:
    """Check the events of a source: their numbers, their bodies, and their records where it can be read again."""
    port = Port(spec.name, "out")
    try:
        gone = certificate.collected(port)
        if gone:
            fact = f"events {port}#1 to #{gone} were collected; verify a run before it is collected"
            verdict.findings.append(undecided(spec.name, fact))
            return
        count, finding = check_sent(certificate.sent(port), port)
        verdict.count("events", count)
        finding = finding or _check_actions(spec.name, certificate) or _check_origins(port, certificate, count)
        if finding is not None:
            verdict.findings.append(finding)
            return
        verdict.findings += _Source(spec, certificate, compute, verdict).check()
    except EventWrong as error:
        verdict.findings.append(error.finding(spec.name))
    except LogUnreadable:
        raise
    except ClewError as error:
        verdict.findings.append(undecided(spec.name, f"what the source holds cannot be read: {error}"))


def _held(spec: OperatorSpec) -> Held | None:
    try:
        return spec.source.holds() if spec.source is not None else None
    except RAISED as error:
        raise Unreadable(f"its holds() fails: {type(error).__name__}: {error}") from error


def _check_actions(source: str, certificate: Certificate) -> Finding | None:
    """Check that a source has come to the end of its read actions, and has left none out."""
    for expected, (number, complete) in enumerate(certificate.actions(source), 1):
        if number != expected:
            return wrong(source, f"read action {expected} is missing", expected=str(expected), found=str(number))
        if not complete:
            return wrong(source, f"has finished, but its read action {number} is incomplete")
    return None


def _check_origins(port: Port, certificate: Certificate, sent: int) -> Finding | None:
    """Check that lineage leads from every event, save the end, to one read action, and through these in order."""
    if certificate.uncaptured(port.operator):
        return None
    known = sum(1 for _ in certificate.actions(port.operator))
    # Events that a Clew logged which kept no lineage of sources have none.
    untold = min(certificate.untold(port), sent - 1)
    due, before = 1, 1
    for number, action in certificate.lineage(port):
        event = str(EventId(port, number))
        if number != due and not (due == 1 < number <= untold + 1):
            return wrong(port.operator, "its lineage leaves out an event, or has it twice", event=event,
                         expected=str(EventId(port, due)), found=event)  # fmt: skip
        if not before <= action <= known:
            return wrong(port.operator, "its lineage leads to another read action than that which gave it", event=event,
                         expected=f"one of {before} to {known}", found=str(action))  # fmt: skip
        due, before = number + 1, action
        if due > sent:
            break
    # The end is an event too, which was read from nowhere.
    if max(due, untold + 1) != sent:
        return wrong(port.operator, "has sent events that its lineage does not know, or fewer than it knows",
                     expected=f"{sent - 1} events", found=f"{due - 1} events")  # fmt: skip
    return None


class _Given(NamedTuple):
    """Some of what a source gives when it is read again."""

    place: Records
    numbers: Sequence[int]
    #: How many records each event has, where the source says so itself; else how many there are in this place.
    sizes: Sequence[int]


class _Source:
    """The events of one source, whose numbers are in order."""

    def __init__(self, spec: OperatorSpec, certificate: Certificate, compute: Compute, verdict: Verdict) -> None:
        self._spec = spec
        self._source = spec.source
        self._held = _held(spec)
        self._log = certificate
        self._compute = compute
        self._verdict = verdict
        self._port = Port(spec.name, "out")
        self._schema = certificate.schema(self._port)

    def check(self) -> Iterator[Finding]:
        if self._schema is None and any(not sent.end for sent in self._log.sent(self._port)):
            raise EventWrong("", f"the log has no schema of {self._port}, which has sent events")
        if self._log.changed(self._spec.name).mixed:
            fact = (
                "its code changed in the course of the run, so that what it gave cannot be held against what it gives"
            )
            yield undecided(self._spec.name, fact)
            yield from self._intact()
        elif self._schema is None and self._held is not None:
            yield from self._compare_nothing(self._held)
        elif isinstance(self._held, FilesHeld) and self._held.as_they_came:
            yield from self._compare_files(self._held)
        elif self._can_be_read_again:
            yield from self._compare()
        else:
            # What was observed once is as good as anything else that could have been observed.
            yield from self._intact()

    def _intact(self) -> Iterator[Finding]:
        """Check that what was logged is whole."""
        for _ in self._compute.map(Intact(stretch) for stretch in self._stretches()):
            pass
        yield from ()

    @property
    def _can_be_read_again(self) -> bool:
        if self._held is not None:
            return True
        return isinstance(self._source, Replayable) and not self._source.stores_snapshot

    def _compare_nothing(self, held: Held) -> Iterator[Finding]:
        """Where it sent nothing, nobody knows what its records would be, but how many there are can be asked."""
        declared = self._spec.schemas.get(self._port.name)
        (count,) = self._compute.map([CountHeld(held, pa.schema([]) if declared is None else declared)])
        if count:
            yield undecided(self._spec.name, _fewer(0), expected=_records(count), found="no record")

    def _compare(self) -> Iterator[Finding]:
        index = 0
        sizes: array[int] = array("Q")
        logged = chain.from_iterable(self._compute.map(Numbers(EventsLogged(part)) for part in self._stretches()))
        for one, other in zip_longest(logged, self._numbers_given(sizes)):
            if one != other:
                yield self._differs(index)
                return
            index += 1
        self._verdict.count("source records", index)
        yield from self._check_cut(sizes)

    def _numbers_given(self, sizes: "array[int]") -> Iterator[int]:
        """Yield the numbers of the records that the source gives, and note where they are cut."""
        for given in self._read():
            # What has no record makes no event.
            sizes.extend(size for size in given.sizes if size)
            yield from given.numbers

    def _check_cut(self, given: Sequence[int]) -> Iterator[Finding]:
        """Compare where events end, for windows of events take them whole; all records are known to be the same."""
        sizes = self._sizes()
        match self._held:
            case None:
                cut = as_given(sizes, given)
            case FilesHeld(rows_per_event=rows) if rows:
                cut = in_files(sizes, given, rows)
            case RowsHeld(rows_per_event=rows) if rows:
                cut = in_rows(sizes, rows)
            case _:
                cut = None
        if cut is not None:
            yield self._cut_otherwise(cut)

    def _sizes(self) -> Iterator[int]:
        """Yield how many records each event has, by its header, which was held against its body."""
        return (sent.rows for sent in self._log.sent(self._port) if not sent.end)

    def _cut_otherwise(self, cut: Cut) -> Finding:
        told = {
            "event": str(EventId(self._port, cut.event)), "expected": _records(cut.expected),
            "found": _records(cut.records),
        }  # fmt: skip
        if cut.fact:
            found_wrong = wrong(self._spec.name, f"its event {cut.fact}", **told)
            return as_of_code(self._spec, self._log, found_wrong)
        fact = "its event does not end where rows_per_event= says: that was changed since the run began, or it was cut"
        return undecided(self._spec.name, f"{fact} otherwise", **told)

    def _compare_files(self, held: FilesHeld) -> Iterator[Finding]:
        """Compare with whole files in any order; holds the numbers of all records at once."""
        logged = self._logged_numbers()
        files = [given.numbers for given in self._read_files(held)]
        order, upto, cut = self._tiled(logged, files, held.rows_per_event)
        if order is None:
            event, found = self._record(((EventsLogged(part), None) for part in self._stretches()), upto)
            fact = f"record {upto + 1} is in no file that is left at this place, or the files have changed since"
            yield wrong(self._spec.name, fact, event=event, expected="the records of whole files", found=found)
            return
        self._verdict.count("source records", len(logged))
        if cut is not None:
            yield self._cut_otherwise(cut)
        used = set(order)
        left = [index for index, numbers in enumerate(files) if numbers and index not in used]
        if left:
            name = files_of(held)[left[0]]
            fact = f"has sent {len(logged)} records and not those of {name}: it has come since, or it was lost"
            yield undecided(self._spec.name, fact)

    def _tiled(
        self, logged: Sequence[int], files: Sequence[Sequence[int]], rows: int
    ) -> tuple[list[int] | None, int, Cut | None]:
        """Find the files that make up what was sent: cut as they are to be, or else in any way."""
        if rows:
            own = [numbered(numbers, cut_at(len(numbers), rows)) for numbers in files]
            order, upto = tiled(numbered(logged, self._sizes()), own)
            if order is not None:
                return order, upto, None
        order, upto = tiled(logged, files)
        cut = in_files(self._sizes(), [len(files[index]) for index in order], rows) if order and rows else None
        # Files of the same records may have come in another order, in which no event has records of two.
        return order, upto, cut._replace(fact="") if cut is not None else None

    def _logged_numbers(self) -> "array[int]":
        logged: array[int] = array("Q")
        for numbers in self._compute.map(Numbers(EventsLogged(part)) for part in self._stretches()):
            logged.extend(numbers)
        return logged

    def _differs(self, index: int) -> Finding:
        event, found = self._record(((EventsLogged(part), None) for part in self._stretches()), index)
        _, expected = self._record(((given.place, given.numbers) for given in self._read()), index)
        if not event and self._held is not None:
            return undecided(self._spec.name, _fewer(index), expected=expected, found=found)
        fact = f"record {index + 1} is not the one that the source gives, or the source has changed since"
        found_wrong = wrong(self._spec.name, fact, event=event, expected=expected, found=found)
        return as_of_code(self._spec, self._log, found_wrong)

    def _record(self, places: Iterator[tuple[Records, Sequence[int] | None]], index: int) -> tuple[str, str]:
        """Return the event that a record is in, and the record."""
        for place, numbers in places:
            if numbers is None:
                (numbers,) = self._compute.map([Numbers(place)])
            if index < len(numbers):
                ((origin, row),) = self._compute.map([FetchOne(place, index)])
                return origin.event, shown([row], self._schema.names if self._schema is not None else ())
            index -= len(numbers)
        return "", "no record"

    def _stretches(self) -> Iterator[Stretch]:
        if self._schema is None:
            return iter(())
        return stretches(self._log, self._port, self._schema, self._log.sent(self._port))

    # Reading again.

    def _read(self) -> Iterator[_Given]:
        """Yield what the source gives, some at a time, with the numbers of its records."""
        held = self._held
        if held is None:
            return self._read_slices()
        if isinstance(held, FilesHeld):
            return self._read_files(held)
        return self._read_places([held])

    def _read_files(self, held: FilesHeld) -> Iterator[_Given]:
        """Read files apart."""
        return self._read_places([FilesHeld((path,), held.format, held.partition_by) for path in files_of(held)])

    def _read_places(self, parts: Sequence[Held]) -> Iterator[_Given]:
        places = [Holding(part, self._schema) for part in parts]
        read = self._compute.map(Numbers(place) for place in places)
        return (_Given(place, numbers, (len(numbers),)) for place, numbers in zip(places, read))

    def _read_slices(self) -> Iterator[_Given]:
        """Go through the source as a run would: plan some events, read their slices, go on after the last."""
        offset, last = None, False
        while not last:
            plan = self._plan(offset)
            slices = [Slice(self._spec.name, self._schema, one) for one in plan.slices]
            count = 0
            for place, (numbers, pieces, after) in zip(slices, self._compute.map(map(ReadSlice, slices))):
                yield _Given(place, numbers, pieces)
                count, offset = count + len(pieces), offset if after is None else after
            # A plan without slices would be made for ever.
            last = not slices or (plan.last if plan.last is not None else count < _STEP)

    def _plan(self, offset: Any) -> Plan:
        assert isinstance(self._source, Replayable)
        try:
            return self._source.plan(None, offset, _STEP)
        except ClewError:
            raise
        except RAISED as error:
            raise Unreadable(f"its plan() fails: {type(error).__name__}: {error}") from error


def _records(count: int | None) -> str:
    return "no event" if count is None else f"{count} record{'' if count == 1 else 's'}"


def _fewer(sent: int) -> str:
    return f"has sent {sent} records and the source has more: it has grown since, or they were lost"
