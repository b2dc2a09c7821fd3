"""Whether a log can go on with a pipeline that was changed since, and what is done to it if it does.

`compare` decides, on values alone. What it finds is compatible, or is refused unless somebody accepts it, knowing what
that does; or it cannot be accepted at all.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew.errors import GraphChanged, SetupFailed
from clew.ids import NONE_SET, InputSetId, Port
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.schema import apart, fixed, from_bytes
from clew.protocol.log.context import fresh
from clew.protocol.step import (
    BeginAfter,
    FinishSets,
    FinishWrites,
    ForgetKeys,
    ForgetPort,
    ResolveAside,
    StoreState,
    StoreVersion,
    Write,
)
from clew.runtime.pending import Held, Logged, consecutive, named
from clew.words import counted

#: Says of events of a receiver that wait which of them some Output Set was made of already: (input port, number).
Used = Callable[[str], Collection[tuple[str, int]]]
#: Says what the log has fixed an output port's schema to.
Kept = Callable[[Port], bytes | None]
_NEW_NAME = "give it a new name, or put it back as it was"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it was, and what becomes of it."""

    operator: str
    #: One fact in one line, which begins with what it is about.
    fact: str
    compatible: bool = True
    #: What accepting it does; nothing where it is compatible, or cannot be accepted.
    accept: str = ""
    #: What to do instead, where it cannot be accepted.
    cure: str = ""
    #: Part of the version that changed, where it is one.
    part: str = ""

    @property
    def offer(self) -> str:
        """The fact, with what can be done about it."""
        if self.compatible:
            return self.fact
        if self.accept:
            return f"{self.fact}; --accept {self.operator} {self.accept}"
        return f"{self.fact}; this cannot be accepted: {self.cure}"

    @property
    def told(self) -> str:
        """The fact, with what was done about it."""
        return self.fact if self.compatible else f"{self.fact}; as accepted, this run {self.accept}"


@dataclass(frozen=True)
class Change:
    """What a changed pipeline makes of its log."""

    findings: tuple[Finding, ...]
    #: What is written when it is taken over.
    writes: tuple[Write, ...]
    #: Operators whose pending events are assigned anew, with the version that is stored with that.
    retaken: Mapping[str, Mapping[str, Any]]


def is_as_it_was(
    graph: Graph,
    links: Mapping[Port, Port],
    versions: Mapping[str, Mapping[str, Any]],
    schema: Kept = lambda port: None,
) -> bool:
    """Say whether a pipeline is what its log says; then nothing that waits there need be looked at."""
    declared = {link.receiver: link.sender for link in graph.links}
    parts = {name: version["parts"] for name, version in versions.items()}
    if declared != links or parts != {name: dict(spec.version) for name, spec in graph.operators.items()}:
        return False
    return not any(_schemas(spec, schema) for spec in graph.operators.values())


def compare(
    graph: Graph, logged: Logged, used: Used = lambda operator: (), schema: Kept = lambda port: None
) -> tuple[Finding, ...]:
    """Say everything that is not as it was when the run began, or as it was last taken over."""
    if not any(held.begun for held in logged.operators.values()):
        return ()
    found: list[Finding] = []
    for spec in graph.operators.values():
        found += _inputs(spec, logged)
        if spec.name in logged.operators:
            found += _parts(spec, logged, used)
            found += _connections(spec, logged.of(spec.name))
            found += [] if logged.of(spec.name).flushed else _schemas(spec, schema)
    found += _removed(graph, logged)
    return tuple(found)


def refuse(pipeline: str, findings: Sequence[Finding], accepted: Collection[str]) -> None:
    """Raise GraphChanged unless everything is compatible, or was accepted."""
    left = [
        finding
        for finding in findings
        if not finding.compatible and not (finding.accept and {finding.operator, "all"} & set(accepted))
    ]
    if left:
        raise GraphChanged(pipeline, tuple(finding.offer for finding in left))


def check_accepted(graph: Graph, logged: Collection[str], accepted: Collection[str]) -> None:
    """Refuse names that no operator has, of the pipeline or of its log."""
    known = {*graph.operators, *logged, "all"}
    for name in sorted(set(accepted) - known):
        raise SetupFailed(f"--accept {name} names no operator", f"there are {', '.join(sorted(known))}")


# What has changed.


def _parts(spec: OperatorSpec, logged: Logged, used: Used) -> Iterator[Finding]:
    held = logged.of(spec.name)
    was = (held.version or {}).get("parts", {})
    now = spec.version
    changed = [part for part in now if part in was and was[part] != now[part]]
    if not held.begun or not changed:
        return
    if "kind" in changed:
        yield _refused(spec, f"was declared as {was['kind']}, and is {now['kind']} now", "give it a new name", "kind")
        return
    if "place" in changed:
        yield from _place(spec, held, json.loads(was["place"]), json.loads(now["place"]))
    if "reads" in changed:
        yield Finding(spec.name, f"{spec.name}: reads {now['reads']} now, and read {was['reads']} before", part="reads")
    if "window" in changed:
        yield _window(spec, held, was["window"], now["window"], used)
    if "code" in changed:
        fact = (
            f"{spec.name}: its code changed; what it made stays as it is, and the new code makes what is not made yet"
        )
        yield Finding(spec.name, fact, part="code")


def _schemas(spec: OperatorSpec, schema: Kept) -> list[Finding]:
    """Tell which output ports are declared otherwise than the log has fixed them."""
    found = []
    for name, declared in spec.schemas.items():
        port = Port(spec.name, name)
        kept = schema(port)
        differs = None if kept is None else apart(fixed(declared), from_bytes(kept))
        if differs is not None:
            column, now, was = differs
            fact = f"{port}: column {column} is declared as {now}, but the run has fixed it to {was}, and a port keeps"
            cure = "put the declaration back, or give the operator a new name"
            found.append(Finding(spec.name, f"{fact} its schema", False, "", cure, "schema"))
    return found


def _place(spec: OperatorSpec, held: Held, was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Finding]:
    if spec.is_source:
        sent = counted(held.counter("sent", "out"), "event")
        fact = f"reads {now['source']} now, and the run has begun to read {was['source']} ({sent} sent)"
        yield _refused(spec, fact, "give it a new name, or start a new log", "place")
        return
    for name in sorted(was.keys() & now.keys()):
        if was[name] == now[name]:
            continue
        undone = held.writes.get(name, ())
        fact = f"{spec.name}.{name}: writes to {now[name]} now; what was written to {was[name]} stays there"
        if undone:
            waits = (
                f"{counted(len(undone), 'write')} ({_numbers(undone)}) {_are(len(undone))} not known to be done there"
            )
            yield Finding(spec.name, f"{fact}, and {waits}", False, "performs them at the new place", part="place")
        else:
            yield Finding(spec.name, fact, part="place")


def _window(spec: OperatorSpec, held: Held, was: str, now: str, used: Used) -> Finding:
    changed = "how it forms Input Sets changed" if spec.general else f"its window changed from {was} to {now}"
    fact = f"{spec.name}: {changed}"
    if spec.general is None and held.aside:
        cure = "put it back, decide on them with `clew quarantine`, and change it then"
        return Finding(
            spec.name,
            f"{fact}, and {len(held.aside)} of its Input Sets {_are(len(held.aside))} in quarantine",
            False,
            "",
            cure,
            "window",
        )
    if not held.open:
        goes_on = "goes on from the global state that the log has" if spec.general else "begins with the next event"
        return Finding(spec.name, f"{fact}; no Input Set is open, and the new one {goes_on}", part="window")
    events = _events(spec.inputs, {port: held.taken[port] for port in held.taken})
    fact = f"{fact}, and {counted(len(held.open), 'Input Set')} with {events} {_are(len(held.open))} open"
    if spec.general is not None:
        accept = "keeps them and the global state as they are, and goes on with the new code"
        return Finding(spec.name, fact, False, accept, part="window")
    made = sorted(set(used(spec.name)) & {event for events in held.open.values() for event in events})
    if made:
        some = named(spec.inputs[made[0][0]], [number for port, number in made if port == made[0][0]])
        fact = f"{fact}; of {some} Output Sets were made already, and they would be made again"
        return Finding(spec.name, fact, False, "", _NEW_NAME, "window")
    return Finding(spec.name, fact, False, "assigns these events anew under the new window", part="window")


def _inputs(spec: OperatorSpec, logged: Logged) -> Iterator[Finding]:
    """Tell which connections to an operator are new, and which are gone or moved."""
    held = logged.of(spec.name)
    before = {port.name: sender for port, sender in logged.links.items() if port.operator == spec.name}
    known = held.version is not None or (not logged.told and spec.name in logged.operators)
    if not known and (spec.is_source or held.flushed):
        if held.begun:
            yield _refused(spec, "was gone, and had begun before it went", "give it a new name")
        elif spec.is_source:
            yield Finding(spec.name, f"{spec.name}: is a new source; it is read from the start")
        return
    for port, sender in spec.inputs.items():
        if before.get(port) == sender:
            continue
        receiver = Port(spec.name, port)
        if known and held.flushed:
            yield _refused(spec, f"reads {sender} on {receiver} now, but has finished", "give it a new name", "inputs")
        elif port in before:
            yield _moved(spec, held, receiver, before[port], f"reads {sender} from {_from(logged, sender)} on")
        else:
            what = _what_is_new(spec) if not known else f"reads on a new port {port}"
            late = "inputs" if known or _begin(logged, sender) else ""
            yield Finding(spec.name, f"{spec.name}: {what} {sender} from {_from(logged, sender)} on", part=late)
    for port in sorted(before.keys() - spec.inputs.keys()):
        if not held.flushed:
            yield _moved(spec, held, Port(spec.name, port), before[port], "has no such port")


def _what_is_new(spec: OperatorSpec) -> str:
    if spec.is_sink:
        return "is a new sink, and writes"
    return "is new, and gets"


def _moved(spec: OperatorSpec, held: Held, receiver: Port, was: Port, now: str) -> Finding:
    fact = f"{receiver}: {now}, and read {was} before"
    if receiver.name in held.aside_ports:
        cure = "put it back, decide on them with `clew quarantine`, and change it then"
        return Finding(
            spec.name,
            f"{fact}, of which {len(held.aside)} {_are(len(held.aside))} in quarantine",
            False,
            "",
            cure,
            "inputs",
        )
    if held.state is not None and receiver.name in held.state.context.get("ended", ()):
        return Finding(spec.name, f"{fact}, which has ended", False, "", "give it a new name", "inputs")
    numbers = held.on(receiver.name)
    if not numbers:
        return Finding(spec.name, f"{fact}; nothing waits there", part="inputs")
    fact = f"{fact}, and {_wait(len(numbers))} there: {named(was, numbers)}"
    return Finding(spec.name, fact, False, "drops them: nobody gets them on this port", part="inputs")


def _connections(spec: OperatorSpec, held: Held) -> Iterator[Finding]:
    for name, undone in sorted(held.writes.items()):
        if name in spec.sinks:
            continue
        fact = f"{spec.name}.{name}: is no longer written to"
        if undone:
            fact = f"{fact}, and {counted(len(undone), 'write')} {'waits' if len(undone) == 1 else 'wait'} there"
            accept = "drops them: they are never performed"
            yield Finding(spec.name, f"{fact}: {_numbers(undone)}", False, accept, part="place")
        elif name in json.loads((held.version or {}).get("parts", {}).get("place", "{}")):
            yield Finding(spec.name, f"{fact}; what was written stays there", part="place")


def _removed(graph: Graph, logged: Logged) -> Iterator[Finding]:
    for name, held in sorted(logged.operators.items()):
        if (
            name in graph.operators
            or (logged.told and held.version is None)
            or not (held.begun or any(held.waiting.values()))
        ):
            continue
        lost = list(_lost(name, held, logged))
        kind = (held.version or {}).get("parts", {}).get("kind", "operator")
        if not lost:
            rest = "; what it has not read is not read" if kind == "source" and not held.flushed else ""
            yield Finding(name, f"{name}: is gone, and nothing waits for it{rest}")
            continue
        again = "; a sink under a new name writes again what reaches it from then on" if kind == "sink" else ""
        yield Finding(name, f"{name}: is gone, and {', '.join(lost)}", False, f"drops all of these{again}")


def _lost(name: str, held: Held, logged: Logged) -> Iterator[str]:
    for receiver, sender in sorted(logged.links.items()):
        if receiver.operator == name and (numbers := held.on(receiver.name)):
            yield f"{_wait(len(numbers))} on {receiver}: {named(sender, numbers)}"
    for connection, undone in sorted(held.writes.items()):
        if undone:
            waits = f"{counted(len(undone), 'write')} to {name}.{connection} {_are(len(undone))} undone"
            yield f"{waits}: {_numbers(undone)}"
    if held.aside:
        yield f"{len(held.aside)} {_are(len(held.aside))} in quarantine"


def _refused(spec: OperatorSpec, fact: str, cure: str, part: str = "") -> Finding:
    return Finding(spec.name, f"{spec.name}: {fact}", False, "", cure, part)


def _from(logged: Logged, sender: Port) -> str:
    return f"#{_begin(logged, sender) + 1}"


def _begin(logged: Logged, sender: Port) -> int:
    """Return the event after which a new receiver begins: the last one, but not the end of the stream."""
    return logged.sent(sender) - (sender in logged.ended)


def _events(inputs: Mapping[str, Port], taken: Mapping[str, Collection[int]]) -> str:
    """Name events by the ports that they wait on."""
    return " and ".join(
        f"{named(inputs[port], numbers) if port in inputs else counted(len(numbers), 'event')} on {port}"
        for port, numbers in sorted(taken.items())
    )


def _numbers(numbers: Sequence[int]) -> str:
    return f"#{numbers[0]}" if len(numbers) == 1 else f"#{numbers[0]}..{numbers[-1]}"


def _wait(events: int) -> str:
    return f"{counted(events, 'event')} {'waits' if events == 1 else 'wait'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


# What is done to the log.


def plan(graph: Graph, logged: Logged, findings: Sequence[Finding]) -> Change:
    """Return what taking the change over does, given that everything in `findings` was accepted."""
    writes: list[Write] = []
    retaken: dict[str, Mapping[str, Any]] = {}
    begun = any(held.begun for held in logged.operators.values())
    for spec in graph.operators.values():
        own = [finding for finding in findings if finding.operator == spec.name]
        version = _version(spec, logged.of(spec.name), own)
        held = logged.of(spec.name)
        retakes = any(f.part == "window" for f in own) and spec.general is None and bool(held.open)
        if retakes:
            retaken[spec.name] = version
            version = {**version, "parts": {**version["parts"], "window": (held.version or {})["parts"]["window"]}}
        if begun:
            writes += _moves(spec, logged, own, retakes)
        if version != held.version:
            writes.append(StoreVersion(spec.name, version))
    for name, held in sorted(logged.operators.items()):
        if name not in graph.operators and (held.version is not None or not logged.told):
            writes += _drop_all(name, held, logged) if begun else ()
            writes.append(StoreVersion(name, None))
    return Change(tuple(findings), tuple(writes), retaken)


def _version(spec: OperatorSpec, held: Held, findings: Sequence[Finding]) -> Mapping[str, Any]:
    """Return what the log is to keep of an operator.

    `mixed` is the last Input Set (of a source: the last event) that an earlier version may have made; `changes` are the
    other parts that were changed while the run was under way; `formed` is the last Input Set that other windows, or
    other inputs, have formed.
    """
    version = held.version or {"mixed": 0, "changes": []}
    changed = {finding.part for finding in findings} - {""}
    mixed = version["mixed"]
    if "code" in changed and held.state is not None:
        mixed = held.counter("sent", "out") if spec.is_source else int(held.state.context.get("input_set", 0))
    changes = sorted({*version["changes"], *(changed - {"code", "reads"})})
    formed = version.get("formed", 0)
    if changed & {"window", "inputs"} and held.state is not None:
        formed = int(held.state.context.get("input_set", 0))
    own = {"formed": formed} if formed else {}
    return {"parts": dict(spec.version), "mixed": mixed, "changes": changes, **own}


def _moves(spec: OperatorSpec, logged: Logged, findings: Sequence[Finding], retakes: bool) -> list[Write]:
    """Let ports of an operator begin where they begin now, drop what was accepted, and begin a new window."""
    held = logged.of(spec.name)
    before = {port.name: sender for port, sender in logged.links.items() if port.operator == spec.name}
    gone = [port for port, sender in before.items() if spec.inputs.get(port) != sender]
    new = [port for port, sender in spec.inputs.items() if before.get(port) != sender]
    begins = {port: _begin(logged, spec.inputs[port]) for port in new}
    resets = spec.general is None and not retakes and _begins_anew(held, logged, findings, gone)
    writes = [*_drop_writes(spec.name, held, set(spec.sinks)), *_forget(spec.name, held, gone)]
    if held.state is None and not any(begins.values()):
        return writes
    if not (gone or any(begins.values()) or resets):
        return writes
    context, state = _counters(spec, held)
    for port in gone:
        context["latest"].pop(port, None)
        context["ended"] = [ended for ended in context["ended"] if ended != port]
    for port, upto in begins.items():
        writes.append(BeginAfter(Port(spec.name, port), upto, context["seq"] + 1))
        context["latest"][port] = upto
        context["seq"] += upto
    if resets:
        state = begun_anew(spec, state)
        writes.append(ForgetKeys(spec.name))
    number = held.state.state_id + 1 if held.state is not None else 1
    return [*writes, StoreState(spec.name, number, context, state)]


def _begins_anew(held: Held, logged: Logged, findings: Sequence[Finding], gone: Collection[str]) -> bool:
    """Say whether the windows of an operator are to forget what they have seen.

    They are new, or the operator was gone meanwhile, or nothing is left open of what ports have brought that are gone.
    """
    was_gone = held.version is None and logged.told
    left = any(port not in gone for events in held.open.values() for port, _ in events)
    return was_gone or any(finding.part == "window" for finding in findings) or (bool(gone) and not left)


def begun_anew(spec: OperatorSpec, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the global state of windows that have seen nothing; what came too late so far stays counted."""
    late = {name: own["late"] for name, own in state.items() if isinstance(own, dict) and "late" in own}
    return {
        name: {**own, "late": late[name]} if name in late and "late" in own else own
        for name, own in spec.logic.initial().items()
    }


def _counters(spec: OperatorSpec, held: Held) -> tuple[dict[str, Any], Mapping[str, Any]]:
    if held.state is not None:
        context = dict(held.state.context)
        return {**context, "latest": dict(context["latest"])}, held.state.state
    made = fresh(spec.name, spec.inputs, spec.outputs, spec.logic.initial()).store_state()
    return dict(made.context), made.state


def _forget(operator: str, held: Held, ports: Collection[str]) -> Iterator[Write]:
    """Drop the events of some ports, and the Input Sets that have no others."""
    empty = [number for number, events in held.open.items() if all(port in ports for port, _ in events)]
    yield from (FinishSets(operator, InputSetId(number), 1) for number in sorted(empty))
    last = NONE_SET if held.state is None else InputSetId(held.state.context.get("input_set", 0))
    yield from (ForgetPort(Port(operator, port), last) for port in ports)


def _drop_writes(operator: str, held: Held, kept: Collection[str]) -> Iterator[Write]:
    for name, undone in sorted(held.writes.items()):
        if undone and name not in kept:
            yield from (FinishWrites(Port(operator, name), run[0], len(run)) for run in consecutive(undone))


def _drop_all(name: str, held: Held, logged: Logged) -> Iterator[Write]:
    yield from _drop_writes(name, held, ())
    ports = [receiver.name for receiver in logged.links if receiver.operator == name]
    yield from _forget(name, held, ports)
    yield from (ResolveAside(name, number, None) for number in held.aside)
    if held.state is not None:
        context = dict(held.state.context)
        # Were it to come back, it would begin anew with what comes then; its numbers go on.
        gone = {"latest": {}, "ended": [], "held": 0}
        yield StoreState(name, held.state.state_id + 1, {**context, **gone}, held.state.state)
