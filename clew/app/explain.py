"""Says in words what a pipeline's operators do, what is promised, and what a crash costs; starts nothing."""

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

from clew.pipeline.contracts import Observed, Replayable, Sink
from clew.pipeline.graph import Generative, Graph, OperatorSpec
from clew.pipeline.operators import LateRecords
from clew.pipeline.timewindows import EventTime
from clew.pipeline.versions import fingerprint_of
from clew.pipeline.windows import Window

#: When Input Sets are complete, by the name of their window; at the end of all inputs, what is open fires too.
_FIRES = {
    "Each": "at once",
    "Batch": "when the turn ends",
    "Count": "when that many have come",
    "Tumbling": "when every input has gone past its end",
    "Sliding": "when every input has gone past its end",
    "Session": "when every input has gone past its gap",
    "Every": "when the clock has gone past its end",
}


@dataclass(frozen=True)
class Explained:
    """One operator in words, topic by topic."""

    operator: str
    reads: str
    windows: tuple[str, ...]
    runs: tuple[str, ...]
    besides: tuple[str, ...]
    error: str
    promises: tuple[str, ...]
    crash: str
    fingerprint: str

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield pairs (topic, sentence)."""
        yield "reads", self.reads
        yield from (("window", text) for text in self.windows)
        yield from (("runs", text) for text in self.runs)
        yield from (("given", text) for text in self.besides)
        yield from (("on error", text) for text in (self.error,) if text)
        yield from (("promised", text) for text in self.promises)
        yield "a crash costs", self.crash
        yield "fingerprint", self.fingerprint


def explain(graph: Graph) -> list[Explained]:
    """Explain all operators, in the order of their declaration."""
    return [
        Explained(
            name, _reads(spec), tuple(_windows(spec)), tuple(_runs(spec)), tuple(_besides(spec)), _on_error(spec),
            tuple(_promises(spec)), _crash(graph, spec), fingerprint_of(spec.version),
        )
        for name, spec in graph.operators.items()
    ]  # fmt: skip


def _reads(spec: OperatorSpec) -> str:
    if spec.source is not None:
        return spec.source.describe()
    inputs = ", ".join(f"{sender} as {port}" if port != "in" else str(sender) for port, sender in spec.inputs.items())
    aside = ", ".join(f"{connection.describe()} as {name}" for name, connection in spec.reads.items())
    return f"{inputs}; while it works also {aside}" if aside else inputs


def _windows(spec: OperatorSpec) -> Iterator[str]:
    if spec.source is not None:
        return
    if spec.general is not None:
        kind = type(spec.general).__name__
        yield f"{kind}.assign forms Input Sets, and {kind}.ready says when one is complete"
    elif spec.is_sink:
        yield "all events of one turn are one write action"
    else:
        for function in spec.functions:
            yield _named(spec, function, _window(function.window))


def _window(window: Window) -> str:
    # What each window is, its own first sentence says.
    what = (window.__doc__ or "").split("\n\n")[0].split(".")[0].strip()
    if isinstance(window, LateRecords):
        return f"{what[:1].lower()}{what[1:]}"
    fires = _FIRES.get(type(window).__name__, "when its window is complete")
    # These two leave nothing open when a turn ends.
    end = "" if type(window).__name__ in ("Each", "Batch") else ", and at the end of all inputs"
    return f"{_short(window)}: {what[:1].lower()}{what[1:]}; it fires {fires}{_waits(window)}{end}{_late(window)}"


def _short(window: Window) -> str:
    """Write a window as it was declared, without what was left at its default."""
    known: tuple[Field[Any], ...] = fields(window) if is_dataclass(window) else ()
    said = [(f.name, getattr(window, f.name)) for f in known if f.init and getattr(window, f.name) != f.default]
    return f"{type(window).__name__}({', '.join(f'{name}={value!r}' for name, value in said)})"


def _waits(window: Window) -> str:
    return f" plus {window.lateness}" if isinstance(window, EventTime) and window.lateness else ""


def _late(window: Window) -> str:
    if not isinstance(window, EventTime):
        return ""
    return "; later records are " + (f"sent on port {window.late}" if window.late else "dropped and counted")


def _runs(spec: OperatorSpec) -> Iterator[str]:
    if spec.source is not None:
        sliced = isinstance(spec.source, Replayable)
        yield "in Python on executors" + (", slices in parallel, one Spark job per turn" if sliced else ", in one task")
    elif spec.is_sink:
        yield "write actions in Python on an executor, in order, after they are logged"
    elif spec.general is not None:
        functions = ", ".join(function.name for function in spec.functions)
        yield f"assign and ready in control, on headers; {functions} in Python per Input Set, one Spark job per turn"
    else:
        for function in spec.functions:
            yield _named(spec, function, _style(function))


def _named(spec: OperatorSpec, function: Generative, text: str) -> str:
    """Name the function, where an operator has several."""
    return f"{function.name}: {text}" if len(spec.functions) > 1 else text


def _style(function: Generative) -> str:
    if function.style != "dataframe":
        return "Python per Input Set: one call each, many in one Spark job per turn"
    if function.row_local:
        return "DataFrame, row by row: one Spark job per turn for all its Input Sets"
    return "DataFrame job per Input Set: a Spark job for each, a few at once"


def _besides(spec: OperatorSpec) -> Iterator[str]:
    # The functions of a general operator share theirs.
    for function in spec.functions[:1] if spec.general is not None else spec.functions:
        for name, lookup in function.besides.lookups.items():
            by = f", by {lookup.key}" if lookup.key else ""
            text = f"lookup {name}{by}: {lookup.described}, read once when a run begins and kept with it"
            yield text if spec.general is not None else _named(spec, function, text)
        if function.besides.setup is not None:
            hook = getattr(function.besides.setup.hook, "__name__", repr(function.besides.setup.hook))
            text = f"what {hook} makes, once in each process before the first record"
            yield text if spec.general is not None else _named(spec, function, text)


def _on_error(spec: OperatorSpec) -> str:
    if not spec.functions:
        return ""
    tries = f"{spec.settings.attempts} attempts" if spec.settings.attempts > 1 else "one attempt"
    if spec.settings.on_error == "stop":
        return f"stop: after {tries} the run stops, and resumes there"
    return f"quarantine: after {tries} what it fails on is set aside, and the rest goes on"


def _promises(spec: OperatorSpec) -> Iterator[str]:
    if spec.source is not None:
        yield _source_promise(spec)
    elif spec.settings.deterministic:
        how = "built in" if spec.built_in else "declared"
        yield f"deterministic, as {how}: `clew verify` computes it again and compares"
    elif not spec.is_sink:
        yield "not declared deterministic: of several results that a crash may cause, exactly one is logged and seen"
    for sink in spec.sinks.values():
        yield f"{sink.describe()}: {_sink_promise(sink)}"
    if spec.settings.after_write:
        yield "receivers see its events only after its writes are done"


def _source_promise(spec: OperatorSpec) -> str:
    source = spec.source
    if isinstance(source, Observed):
        return "not replayable: what it reads is stored before any event is made of it"
    if isinstance(source, Replayable) and source.stores_snapshot:
        return "replayable from any offset, once what there is to read has been stored"
    return "replayable from any offset"


def _sink_promise(sink: Sink) -> str:
    if sink.transactional:
        return "exactly once, and a writer that was replaced is refused: the write's number commits with its data"
    if sink.checkable and sink.idempotent:
        return "exactly once by name: after a crash it is asked whether it has a write, and a repeat is harmless"
    if sink.checkable:
        return "after a crash it is asked whether it has a write, and only what it has not is written again"
    return "a repeat under the same name is harmless, as declared"


def _crash(graph: Graph, spec: OperatorSpec) -> str:
    others = [name for name in graph.groups[spec.group] if name != spec.name]
    with_it = f"; {', '.join(others)} of its group start again with it" if others else ""
    return f"{_cost(spec)}{with_it}; all others keep working"


def _cost(spec: OperatorSpec) -> str:
    turn = f"one turn, which is about {spec.settings.turn_seconds:g} s of work"
    if spec.source is not None:
        if isinstance(spec.source, Replayable):
            return f"{turn}, is read again"
        return f"{turn}, is made again of what was stored; what was not stored yet is read again, as it is then"
    if spec.is_sink:
        return "the writes in flight are looked for, and written again where they are missing"
    return f"{turn} and at most {spec.settings.max_turn_events} events, is computed again"
