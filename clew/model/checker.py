"""The checker: is a finished run one that could have happened without failures?

The log is a certificate of one failure-free run. The checker goes through it once, in time linear in the run, and
shows that Input Sets cover what each operator took, in channel order, with no gap and no overlap beyond what its
windows declare; that ids are consecutive; that each Output Set is what its function gives on its Input Set (where the
function is declared deterministic; elsewhere that there is exactly one); that the sinks hold, as multisets, what the
certificate says was written; and, given a trace, that nothing observed was ever retracted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import Any

import pyarrow as pa

from clew.errors import ClewError
from clew.ids import EventId, Port
from clew.model.certificate import Answer, Body, Certificate, Finding, Logged, Sent, Verdict, undecided, wrong
from clew.model.compare import rows_of, shown
from clew.model.interpret import records
from clew.model.replay import Claim, Replay, check_sent
from clew.model.sinks import check_sinks
from clew.model.work import Compute, Events, Evidence, Facts, Origin, Recompute, Recomputed, digest
from clew.pipeline.contracts import Replayable
from clew.pipeline.graph import Graph, OperatorSpec

#: How many events one piece of work holds.
CHUNK_EVENTS = 500

#: More events than any source has.
_ALL = 1 << 40


class Checker:
    """Judges one finished run of a pipeline."""

    def __init__(self, graph: Graph, certificate: Certificate, compute: Compute) -> None:
        self._graph = graph
        self._log = certificate
        self._compute = compute
        self._verdict = Verdict()

    def check(self, progress: Callable[[str], None] = lambda operator: None) -> Verdict:
        """Go through the whole run; `progress` hears the operator that is looked at."""
        if self._check_shape():
            for spec in self._graph.operators.values():
                progress(spec.name)
                if spec.source is not None:
                    self._check_source(spec)
                else:
                    self._check_operator(spec)
            progress("sinks")
            check_sinks(self._graph, self._log, self._compute, self._verdict)
        return self._verdict

    def _add(self, *findings: Finding) -> None:
        self._verdict.findings += findings

    def _check_shape(self) -> bool:
        """Check that the log is that of this pipeline, and that the run has finished."""
        statuses = self._log.statuses()
        expected = {link.receiver: link.sender for link in self._graph.links}
        missing = [name for name in self._graph.operators if name not in statuses]
        if missing or self._log.links() != expected:
            self._add(wrong(self._graph.name, f"the log is of another graph; it has {', '.join(sorted(statuses))}"))
            return False
        running = [name for name in self._graph.operators if statuses[name] != "finished" or self._log.pending(name)]
        if running:
            fact = f"the run has not finished ({', '.join(running)}); run it to its end, and verify it then"
            self._add(undecided(self._graph.name, fact))
            return False
        return True

    # Sources.

    def _check_source(self, spec: OperatorSpec) -> None:
        port = Port(spec.name, "out")
        gone = self._log.collected(port)
        if gone:
            self._add(undecided(spec.name, f"events {port}#1 to #{gone} were collected"))
            return
        try:
            count = check_sent(self._log.sent(port), port, None, _raise(spec.name))
        except _Found as found:
            self._add(found.finding)
            return
        self._verdict.count("events", count)
        schema = self._log.schema(port)
        source = spec.source
        if schema is None or not isinstance(source, Replayable):
            # What was observed once is as good as anything else that could have been observed.
            return
        works = self._origin(spec, source, schema)
        if works is None:
            return
        logged = self._compute.map(Events(part, schema, self._log.root) for part in self._parts(port))
        given = self._compute.map(works)
        try:
            self._same_records(spec, works, _flat(logged), _flat(given))
        except ClewError as error:
            self._add(undecided(spec.name, f"what the source holds cannot be read: {error}"))

    def _origin(self, spec: OperatorSpec, source: Replayable, schema: pa.Schema) -> list[Origin] | None:
        """Return the work that reads a source again, or None where nobody can."""
        if source.holds() is not None:
            return [Origin(spec.name, schema)]
        if source.stores_snapshot:
            return None
        # Without a snapshot all slices can be planned at once, if the source can say which is the last.
        plan = source.plan(None, None, _ALL)
        return [Origin(spec.name, schema, (piece,)) for piece in plan.slices] if plan.last else None

    def _same_records(
        self, spec: OperatorSpec, works: Sequence[Origin], logged: Iterator[int], given: Iterator[int]
    ) -> None:
        compared = 0
        for one, other in zip_longest(logged, given):
            if one != other:
                fact = f"record {compared + 1} is not the one that the source gives, or the source has changed since"
                event, found = self._logged_record(spec, compared)
                expected = self._given_record(works, compared)
                self._add(wrong(spec.name, fact, event=event, expected=expected, found=found))
                return
            compared += 1
        self._verdict.count("source records", compared)

    def _logged_record(self, spec: OperatorSpec, index: int) -> tuple[str, str]:
        """Return the event that a record of a source is in, and the record."""
        port = Port(spec.name, "out")
        for sent in self._log.sent(port):
            if index < sent.rows:
                (body,) = self._log.bodies(port, sent.number, 1)
                table = records(body, self._log.root, self._log.schema(port))
                return str(EventId(port, sent.number)), shown(rows_of(table)[index : index + 1], table.schema.names)
            index -= sent.rows
        return "", "no record"

    def _given_record(self, works: Sequence[Origin], index: int) -> str:
        for work in works:
            (rows,) = self._compute.map([replace(work, at=index)])
            if isinstance(rows, list):
                return shown(rows, work.schema.names)
            index -= rows
        return "no record"

    # Operators.

    def _check_operator(self, spec: OperatorSpec) -> None:
        gone = [str(port) for port in spec.inputs.values() if self._log.collected(port)]
        if gone:
            fact = f"events of {', '.join(gone)} were collected, so that Input Sets cannot be followed from the start"
            self._add(undecided(spec.name, fact))
            return
        replay = Replay(spec, self._log, lambda port, sent: self._facts(spec, port, sent))
        claims = _counted(replay.claims(), self._verdict)
        if spec.is_sink:
            self._check_sink_writes(spec, claims)
        elif spec.settings.deterministic and self._can_compute(spec):
            self._recompute(spec, claims)
        else:
            for _ in claims:
                pass
        self._add(*replay.findings)
        self._verdict.count("events", replay.events)

    def _can_compute(self, spec: OperatorSpec) -> bool:
        if self._compute.frames is None and any(function.style == "dataframe" for function in spec.functions):
            self._add(undecided(spec.name, "takes Spark DataFrames; verify it with Spark to compute it again"))
            return False
        return True

    def _facts(self, spec: OperatorSpec, port: str, sent: Iterable[Sent]) -> Iterator[Any]:
        sender = spec.inputs[port]
        schema = self._log.schema(sender)
        if schema is None:
            return iter(())
        works = (
            Facts(spec.name, tuple(self._log.bodies(sender, numbers[0], len(numbers))), schema, self._log.root)
            for numbers in _batches((one.number for one in sent), CHUNK_EVENTS)
        )
        return chain.from_iterable(self._compute.map(works))

    def _parts(self, port: Port) -> Iterator[tuple[Body, ...]]:
        numbers = (sent.number for sent in self._log.sent(port) if not sent.end)
        for batch in _batches(numbers, CHUNK_EVENTS):
            yield tuple(self._log.bodies(port, batch[0], len(batch)))

    def _recompute(self, spec: OperatorSpec, claims: Iterator[Claim]) -> None:
        inputs = {port: self._log.schema(sender) for port, sender in spec.inputs.items()}
        outputs = {port: self._log.schema(Port(spec.name, port)) for port in spec.outputs}
        known = {port: schema for port, schema in inputs.items() if schema is not None}
        sent = {port: schema for port, schema in outputs.items() if schema is not None}
        evidence = _Evidence(spec, self._log)
        works = (Recompute(spec.name, part, known, sent, self._log.root) for part in evidence.chunks(claims))
        made: dict[str, list[tuple[int, int]]] = {name: [] for name in spec.sinks}
        result: Recomputed
        for result in self._compute.map(works):
            if result.finding is not None:
                self._add(result.finding)
                return
            for connection, writes in result.writes.items():
                made[connection] += writes
        for connection, all_writes in made.items():
            self._check_own_writes(Port(spec.name, connection), all_writes)

    def _check_own_writes(self, connection: Port, made: Sequence[tuple[int, int]]) -> None:
        """Hold the write actions that a function makes against those that were logged, in order."""
        logged = self._log.writes(connection)
        for number, (write, one) in enumerate(zip_longest(logged, made), 1):
            input_set = one[0] if one else None
            if write is None or one is None:
                fact = f"write action {connection}#{number} was {'never logged' if write is None else 'made by nobody'}"
                self._add(wrong(connection.operator, fact, input_set=input_set))
                return
            tables = [records(body, self._log.root, None) for body in write.bodies]
            if [digest(table) for table in tables] != [one[1]]:
                fact = f"write action {connection}#{number} is not what the function writes"
                found = "; ".join(str(table.to_pylist()[:3]) for table in tables)
                self._add(wrong(connection.operator, fact, input_set=input_set, found=found))
                return

    def _check_sink_writes(self, spec: OperatorSpec, claims: Iterator[Claim]) -> None:
        """A sink writes each Input Set once, in order."""
        (name,) = spec.sinks
        connection = Port(spec.name, name)
        for number, (write, claim) in enumerate(zip_longest(self._log.writes(connection), claims), 1):
            if write is None or claim is None:
                fact = f"write action {connection}#{number} was {'never logged' if write is None else 'made by nobody'}"
                self._add(wrong(spec.name, fact, input_set=claim.input_set if claim else None))
                return
            finding = _write_finding(spec, connection, number, write, claim)
            if finding is not None:
                self._add(finding)
                return


def _write_finding(spec: OperatorSpec, connection: Port, number: int, write: Logged, claim: Claim) -> Finding | None:
    expected = tuple((spec.inputs[port], first, count) for port, first, count in claim.spans)
    if write.number != number:
        return wrong(
            spec.name, f"write actions of {connection} are not consecutive", expected=f"#{number}",
            found=f"#{write.number}", input_set=claim.input_set,
        )  # fmt: skip
    if write.events != expected:
        return wrong(
            spec.name, f"write action {connection}#{number} writes other events than its Input Set has",
            input_set=claim.input_set, expected=_spans(expected), found=_spans(write.events),
        )  # fmt: skip
    if not write.done:
        return wrong(spec.name, f"write action {connection}#{number} was never marked as done")
    return None


class _Evidence:
    """Finds the bodies that claims speak of, a stretch of claims at a time."""

    def __init__(self, spec: OperatorSpec, certificate: Certificate) -> None:
        self._spec = spec
        self._log = certificate
        self._answers = _Answers(certificate.answers(spec.name))

    def chunks(self, claims: Iterator[Claim]) -> Iterator[tuple[Evidence, ...]]:
        stretch: list[Claim] = []
        events = 0
        for claim in claims:
            stretch.append(claim)
            events += sum(count for _, _, count in claim.spans) + sum(count for _, count in claim.outputs.values())
            if events >= CHUNK_EVENTS:
                yield self._gathered(stretch)
                stretch, events = [], 0
        if stretch:
            yield self._gathered(stretch)

    def _gathered(self, claims: Sequence[Claim]) -> tuple[Evidence, ...]:
        inputs: dict[tuple[str, int], Body] = {}
        for port, sender in self._spec.inputs.items():
            spans = [(first, count) for claim in claims for name, first, count in claim.spans if name == port]
            inputs |= {(port, number): body for number, body in self._bodies(sender, spans)}
        outputs: dict[tuple[str, int], Body] = {}
        for port in self._spec.outputs:
            spans = [claim.outputs[port] for claim in claims if claim.outputs[port][1]]
            outputs |= {(port, number): body for number, body in self._bodies(Port(self._spec.name, port), spans)}
        return tuple(self._one(claim, inputs, outputs) for claim in claims)

    def _bodies(self, port: Port, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Body]]:
        """Fetch bodies by the stretches that spans form together: neighbours are asked for at once."""
        wanted = sorted(set(spans))
        while wanted:
            first, stop, taken = wanted[0][0], wanted[0][0], 0
            while taken < len(wanted) and wanted[taken][0] <= stop:
                stop = max(stop, sum(wanted[taken]))
                taken += 1
            yield from enumerate(self._log.bodies(port, first, stop - first), first)
            wanted = wanted[taken:]

    def _one(self, claim: Claim, inputs: dict[tuple[str, int], Body], outputs: dict[tuple[str, int], Body]) -> Evidence:
        own = {
            (port, number): inputs[port, number]
            for port, first, count in claim.spans
            for number in range(first, first + count)
        }
        made = {
            port: tuple(outputs[port, number] for number in range(first, first + count))
            for port, (first, count) in claim.outputs.items()
        }
        return Evidence(claim, own, made, self._answers.of(claim.input_set))


class _Answers:
    """What side-effect reads found, by Input Set; they are few, and need not come in the order of the claims."""

    def __init__(self, answers: Iterator[Answer]) -> None:
        self._answers: dict[int, dict[str, tuple[Body, ...]]] = {}
        for answer in answers:
            own = self._answers.setdefault(answer.input_set, {})
            own[answer.connection] = (*own.get(answer.connection, ()), answer.body)

    def of(self, input_set: int) -> dict[str, tuple[Body, ...]]:
        return self._answers.get(input_set, {})


class _Found(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _raise(operator: str) -> Callable[..., Any]:
    def complain(fact: str, **rest: Any) -> None:
        raise _Found(wrong(operator, fact, **rest))

    return complain


def _counted(claims: Iterator[Claim], verdict: Verdict) -> Iterator[Claim]:
    for claim in claims:
        verdict.count("input sets")
        yield claim


def _flat(results: Iterator[Any]) -> Iterator[int]:
    for result in results:
        if isinstance(result, ClewError):
            raise result
        yield from result


def _batches(items: Iterable[int], size: int) -> Iterator[list[int]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def _spans(events: Sequence[tuple[Port, int, int]]) -> str:
    return ", ".join(f"{EventId(port, first)} ({count})" for port, first, count in events) or "none"
