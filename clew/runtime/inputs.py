"""An operator's input side: what it takes in a turn, and the bodies of the events it holds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clew.ids import Port
from clew.pipeline.graph import OperatorSpec
from clew.pipeline.unplaced import unplaced
from clew.protocol.log.context import Arrival, InputSet, Span
from clew.protocol.rows import Bodies, EventRun, cut_bodies
from clew.runtime.engine import Job
from clew.runtime.progress import Clock
from clew.runtime.runner import Surroundings
from clew.runtime.task import FactsTask, Part


class Inputs:
    """Gathers events in a fair order over the ports, and finds bodies of events that are held."""

    def __init__(self, spec: OperatorSpec, around: Surroundings) -> None:
        self._spec = spec
        self._around = around
        self._ports = list(spec.inputs)
        # Runs gathered for the current turn, by port; events taken in earlier turns are found in the log.
        self._runs: dict[str, list[EventRun]] = {}

    def reset(self, latest: Mapping[str, int]) -> None:
        """Start after the last event acknowledged on each port."""
        for port in self._ports:
            self._around.channels.reset(Port(self._spec.name, port), latest.get(port, 0))

    def gather(self, max_events: int, max_bytes: int) -> None:
        """Take what waits, port by port; the port that came first this time comes last the next."""
        runs: list[EventRun] = []
        self._runs = {}
        for port in self._ports:
            room = max_events - sum(len(run.headers) for run in runs)
            left = max_bytes - sum(run.size for run in runs)
            if room <= 0 or left <= 0:
                break
            found = self._around.channels.take(Port(self._spec.name, port), room, left)
            self._runs[port] = found
            runs += found
        self._ports.append(self._ports.pop(0))

    def arrivals(self, job: Job, clock: Clock) -> list[Arrival]:
        """Return headers with the facts that this operator's current declaration needs; `job` computes missing ones."""
        return [
            event
            for port, found in self._runs.items()
            for run in found
            for event in self._of_run(port, run, job, clock)
        ]

    def taken_again(self, spans: Iterable[Span], job: Job, clock: Clock) -> list[tuple[Arrival, int]]:
        """Return events that were taken before, in that order, with the facts that the declaration needs now."""
        seqs = {(span.port, span.first + i): span.seq + i for span in spans for i in range(span.count)}
        found = []
        for port, number in sorted(seqs):
            for run in self._around.store.events(self._spec.inputs[port], number, 1):
                found += [(event, seqs[port, event.number]) for event in self._of_run(port, run, job, clock)]
        return sorted(found, key=lambda pair: pair[1])

    def _of_run(self, port: str, run: EventRun, job: Job, clock: Clock) -> list[Arrival]:
        logic = self._spec.logic
        facts: Sequence[Any] = ()
        if logic.needs_facts:
            receiver = str(Port(self._spec.name, port))
            known = [header.facts.get(receiver, ("", None)) for header in run.headers]
            # What could not be placed is looked at again: the declaration, or the code, may have been mended.
            good = (made == logic.fingerprint and unplaced(fact) is None for made, fact in known)
            if all(header.end or known_well for known_well, header in zip(good, run.headers)):
                facts = [fact for _, fact in known]
            else:
                facts = self._compute(port, run, job, clock)
        return [
            Arrival(port, run.first + i, header.rows, header.size, facts[i] if facts else None, header.end)
            for i, header in enumerate(run.headers)
        ]

    def _compute(self, port: str, run: EventRun, job: Job, clock: Clock) -> list[Any]:
        """Compute facts with a job of their own: the declaration is not the one that the events were made for."""
        schema = self._around.store.schema(run.port)
        assert schema is not None, f"{run.port} has events but no schema"
        task = FactsTask(self._around.bodies, Port(self._spec.name, port), schema, run.bodies)
        with clock:
            (facts,) = self._around.engine.map(replace(job, about=f"facts of {run.port}"), [task]).results
        return [*facts, *([None] * (len(run.headers) - len(facts)))]

    def parts(self, input_set: InputSet) -> tuple[Part, ...]:
        """Return the bodies of an Input Set's events, in the order in which they were taken."""
        return tuple(Part(span.port, span.first, self._bodies(span)) for span in input_set.spans)

    def _bodies(self, span: Span) -> tuple[Bodies, ...]:
        gathered = self._runs.get(span.port, [])
        at, end = span.first, span.first + span.count
        start = min(end, gathered[0].first) if gathered else end
        bodies: list[Bodies] = []
        if at < start:
            # Taken in an earlier turn.
            for run in self._around.store.events(self._spec.inputs[span.port], at, start - at):
                bodies += run.bodies
        for run in gathered:
            low, high = max(at, run.first), min(end, run.last + 1)
            if low < high:
                bodies += cut_bodies(run.bodies, low - run.first, high - run.first)
        return tuple(bodies)

    def committed(self) -> None:
        """Forget the bodies of the turn that was committed."""
        self._runs = {}
