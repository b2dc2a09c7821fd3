"""The checker: is a finished run one that could have happened without failures?

The log is a certificate of one failure-free run. The checker goes through it once, in time linear in the run, and
shows that Input Sets cover what each operator took, in channel order, with no gap and no overlap beyond what its
windows declare; that ids are consecutive; that each Output Set is what its function gives on its Input Set (where the
function is declared deterministic; elsewhere that there is exactly one); that sources give the records again, where
they can; and that the sinks hold, as multisets, what the certificate says was written.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any

from clew.ids import Port
from clew.model.as_logged import AsLogged, decides_anew
from clew.model.certificate import Certificate, EventWrong, Finding, Kept, Mistake, Sent, Verdict, undecided, wrong
from clew.model.declared import as_of_code, is_of_code
from clew.model.evidence import Gathering, answers_whole, stretches
from clew.model.replay import Claim, Replay
from clew.model.sinks import check_sinks
from clew.model.sources import check_source
from clew.model.work import Compute, Evidence, Facts, Intact, Recompute, Recomputed
from clew.model.writes import OwnWrites, SinkWrites
from clew.pipeline.graph import Graph, OperatorSpec


class Checker:
    """Judges one finished run of a pipeline."""

    def __init__(self, graph: Graph, certificate: Certificate, compute: Compute) -> None:
        self._graph = graph
        self._log = certificate
        self._compute = compute
        self._verdict = Verdict()

    def check(self, progress: Callable[[str], None] = lambda operator: None) -> Verdict:
        """Go through the whole run; `progress` hears the operator that is looked at."""
        try:
            if not self._check_shape():
                return self._verdict
        except EventWrong as error:
            self._add(error.finding(self._graph.name))
            return self._verdict
        for spec in self._graph.operators.values():
            progress(spec.name)
            if spec.source is not None:
                check_source(spec, self._log, self._compute, self._verdict)
            else:
                self._check_operator(spec)
        progress("sinks")
        try:
            check_sinks(self._graph, self._log, self._compute, self._verdict)
        except EventWrong as error:
            self._add(error.finding(self._graph.name))
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
        running = [name for name, spec in self._graph.operators.items() if self._is_running(spec, statuses[name])]
        if running:
            fact = f"the run has not finished ({', '.join(running)}); run it to its end, and verify it then"
            self._add(undecided(self._graph.name, fact))
            return False
        return True

    def _is_running(self, spec: OperatorSpec, status: str) -> bool:
        if status != "finished" or self._log.pending(spec.name):
            return True
        return any(not write.done for name in spec.sinks for write in self._log.writes(Port(spec.name, name)))

    def _check_operator(self, spec: OperatorSpec) -> None:
        def facts(port: str, sent: Iterable[Sent]) -> Iterator[Any]:
            return self._facts(spec, port, sent)

        before = deepcopy(self._verdict)
        try:
            try:
                # What it goes through first it looks for at once.
                self._follow(spec, Replay(spec, self._log, facts))
            except Mistake as mistake:
                if mistake.finding.weight != "wrong" or not decides_anew(spec, self._log, facts):
                    raise
                self._verdict = before
                if spec.settings.deterministic:
                    fact = "is declared deterministic and is not: its assign or ready decides something else each time"
                    raise Mistake(wrong(spec.name, fact)) from mistake
                self._verdict.as_logged.append(spec.name)
                self._follow(spec, AsLogged(spec, self._log))
        except Mistake as mistake:
            self._add(mistake.finding)
        except EventWrong as error:
            self._add(error.finding(spec.name))

    def _follow(self, spec: OperatorSpec, replay: Replay) -> None:
        try:
            if self._is_followed(spec):
                self._go_through(spec, replay)
        finally:
            self._verdict.count("events", replay.events)
            if replay.dropped:
                # No mistake, and yet less than came in: whoever reads the verdict is told.
                self._verdict.count("set aside and dropped", replay.dropped)

    def _is_followed(self, spec: OperatorSpec) -> bool:
        """Say whether Input Sets can be followed from the start: not where what forms them was changed on the way."""
        parts = sorted({"inputs", "window"}.intersection(self._log.changed(spec.name).parts))
        if not parts:
            return True
        fact = (
            f"its {' and its '.join(parts)} changed in the course of the run, so that its Input Sets cannot be followed"
        )
        self._add(undecided(spec.name, fact))
        if not spec.is_sink:
            self._check_intact(spec)
            OwnWrites(self._log, spec, self._compute).finish_unknown()
        return False

    def _go_through(self, spec: OperatorSpec, replay: Replay) -> None:
        claims = _counted(replay.claims(), self._verdict)
        if spec.is_sink:
            writes = SinkWrites(self._log, spec)
            for claim in claims:
                writes.check(claim)
            writes.finish()
        elif spec.settings.deterministic and self._can_compute(spec):
            self._recompute(spec, self._of_this_code(spec, claims))
        else:
            if not spec.settings.deterministic:
                self._verdict.counted.append(spec.name)
            own = OwnWrites(self._log, spec, self._compute)
            for claim in claims:
                own.take_made(claim.input_set)
            self._check_intact(spec)
            for _ in self._compute.map(answers_whole(self._log, spec.name)):
                pass
            own.finish_made()

    def _of_this_code(self, spec: OperatorSpec, claims: Iterator[Claim]) -> Iterator[Claim]:
        """Leave out the Output Sets that code may have made which nobody has any more."""
        mixed = self._log.changed(spec.name).mixed
        left = 0
        for claim in claims:
            if claim.input_set > mixed:
                yield claim
            else:
                left += 1
        if left:
            fact = f"its code changed in the course of the run: {left} Output Sets may be the earlier code's"
            self._add(undecided(spec.name, f"{fact}, and were not computed again"))

    def _check_intact(self, spec: OperatorSpec) -> None:
        """Of functions that may give anything: what they gave is whole."""
        for name in spec.outputs:
            port = Port(spec.name, name)
            schema = self._log.schema(port)
            if schema is not None:
                parts = stretches(self._log, port, schema, self._log.sent(port))
                for _ in self._compute.map(Intact(part) for part in parts):
                    pass

    def _can_compute(self, spec: OperatorSpec) -> bool:
        if self._log.changed(spec.name).mixed and (spec.sinks or spec.reads):
            fact = "its code changed in the course of the run, so that its writes and reads cannot be followed"
            self._add(undecided(spec.name, fact))
            return False
        if self._compute.frames is None and any(function.style == "dataframe" for function in spec.functions):
            self._add(undecided(spec.name, "takes Spark DataFrames; verify it with Spark to compute it again"))
            return False
        return True

    def _facts(self, spec: OperatorSpec, port: str, sent: Iterable[Sent]) -> Iterator[Any]:
        sender = spec.inputs[port]
        schema = self._log.schema(sender)
        if schema is None:
            return iter(())
        works = (Facts(spec.name, stretch) for stretch in stretches(self._log, sender, schema, sent))
        return chain.from_iterable(self._compute.map(works))

    def _recompute(self, spec: OperatorSpec, claims: Iterator[Claim]) -> None:
        gathering = Gathering(spec, self._log)
        writes = OwnWrites(self._log, spec, self._compute)
        # Where work is done elsewhere some of it is under way.
        under_way: deque[Recompute] = deque()
        result: Recomputed
        for result in self._compute.map(self._works(spec, gathering.chunks(claims), under_way)):
            work = under_way.popleft()
            if result.finding is not None:
                raise Mistake(as_of_code(spec, self._log, result.finding))
            # A function that was mended since need not fail any more.
            self._add(*result.unfailing if is_of_code(spec, self._log) else ())
            self._verdict.count("Output Sets", len(work.evidence))
            writes.check(work, result)
        gathering.finish()
        writes.finish()

    def _works(
        self, spec: OperatorSpec, chunks: Iterator[tuple[Evidence, ...]], under_way: deque[Recompute]
    ) -> Iterator[Recompute]:
        # Where nothing was ever sent, the declaration may tell the columns.
        inputs = {p: self._graph.schema(sender, self._log.schema) for p, sender in spec.inputs.items()}
        outputs = {port: self._log.schema(Port(spec.name, port)) for port in spec.outputs}
        known = {port: schema for port, schema in inputs.items() if schema is not None}
        sent = {port: schema for port, schema in outputs.items() if schema is not None}
        lookups = self._kept(spec)
        for chunk in chunks:
            under_way.append(Recompute(spec.name, chunk, known, sent, self._log.root, lookups))
            yield under_way[-1]

    def _kept(self, spec: OperatorSpec) -> Mapping[str, Kept]:
        """Return what the run has kept of the lookups; raises EventWrong where it lacks one."""
        kept = self._log.lookups(spec.name)
        for name in spec.lookups:
            if name not in kept:
                raise EventWrong("", f"the log has not kept lookup {name}")
        return {name: kept[name] for name in spec.lookups}


def _counted(claims: Iterator[Claim], verdict: Verdict) -> Iterator[Claim]:
    for claim in claims:
        verdict.count("Input Sets")
        yield claim
