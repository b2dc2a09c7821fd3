"""Lineage scopes: between which ports lineage is captured (LOG.io, Section 3.1)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clew.errors import GraphError
from clew.ids import Capture, Port, writes_port

if TYPE_CHECKING:
    from clew.pipeline.graph import OperatorSpec


@dataclass(frozen=True)
class Scope:
    """Lineage is captured along all paths from one output port to another, or to the write actions of a sink."""

    start: Port
    target: Port
    location: str = ""
    #: For how many seconds, and up to how many bytes, collection leaves it; None is for ever, and without bound.
    keep: float | None = None
    keep_bytes: int | None = None

    def __str__(self) -> str:
        return f"({self.start}, {self.target})"


def captures(operators: Mapping[str, "OperatorSpec"], scopes: Sequence[Scope]) -> dict[str, Capture]:
    """Return the enabled ports of each operator: all that lie on a path of some scope, or all where there is none."""
    found = {name: _all_of(spec) for name, spec in operators.items() if spec.settings.lineage}
    if scopes:
        on_paths = [_enabled(operators, scope) for scope in scopes]
        found = {name: _only(one, [enabled.get(name, _NOTHING) for enabled in on_paths]) for name, one in found.items()}
    return {name: one for name, one in found.items() if one.outputs}


#: No ports in, no ports out.
_NOTHING: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


def _all_of(spec: "OperatorSpec") -> Capture:
    keyed = any(function.window.needs_facts for function in spec.functions)
    labels = len(spec.functions) > 1 or spec.general is not None or keyed
    return Capture(tuple(spec.inputs), _sends(spec), labels)


def _sends(spec: "OperatorSpec") -> tuple[str, ...]:
    return (*spec.outputs, *(writes_port(connection) for connection in spec.sinks))


def _only(all_of: Capture, enabled: Sequence[tuple[frozenset[str], frozenset[str]]]) -> Capture:
    inputs = {name for names, _ in enabled for name in names}
    outputs = {name for _, names in enabled for name in names}
    kept = (tuple(name for name in all_of.inputs if name in inputs), tuple(n for n in all_of.outputs if n in outputs))
    return Capture(*kept, all_of.labels)


def _enabled(operators: Mapping[str, "OperatorSpec"], scope: Scope) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Return IN and OUT of the operators on the paths of one scope."""
    ahead, before = _reached(operators, scope.start), _reaching(operators, scope.target)
    found = {}
    for name, spec in operators.items():
        inputs = frozenset(port for port, sender in spec.inputs.items() if sender in ahead)
        outputs = frozenset(port for port in _sends(spec) if Port(name, port) in before)
        if inputs and outputs:
            found[name] = inputs, outputs
    return found


def _reached(operators: Mapping[str, "OperatorSpec"], start: Port) -> set[Port]:
    """Return the ports that events of `start` have a part in."""
    reached = {start}
    grown = True
    while grown:
        more = {
            Port(name, port)
            for name, spec in operators.items()
            if reached.intersection(spec.inputs.values())
            for port in _sends(spec)
        }
        grown = not more <= reached
        reached |= more
    return reached


def _reaching(operators: Mapping[str, "OperatorSpec"], target: Port) -> set[Port]:
    """Return the ports whose events have a part in those of `target`."""
    reaching, ahead = {target}, [target]
    while ahead:
        senders = set(operators[ahead.pop().operator].inputs.values()) - reaching
        reaching |= senders
        ahead += senders
    return reaching


def resolved(scope: Scope, operators: Mapping[str, "OperatorSpec"]) -> Scope:
    """Let a target that names an operator without output ports mean its write actions."""
    spec = operators.get(scope.target.operator)
    if spec is None or spec.outputs or not spec.sinks:
        return scope
    return replace(scope, target=Port(spec.name, writes_port(next(iter(spec.sinks)))))


def wrong(scope: Scope, operators: Mapping[str, "OperatorSpec"]) -> Iterator[GraphError]:
    """Say what is wrong with a scope."""
    for port in (scope.start, scope.target):
        spec = operators.get(port.operator)
        if spec is None or port.name not in _sends(spec):
            known = sorted(f"{s.name}.{name}" for s in operators.values() for name in s.outputs)
            yield GraphError(
                f"lineage scope {scope}: there is no port {port}; there are {', '.join(known)}", scope.location
            )
            return
    enabled = _enabled(operators, scope)
    if not enabled:
        yield GraphError(
            f"lineage scope {scope}: no path leads from {scope.start} to {scope.target}; name the earlier port first",
            scope.location,
        )
    for name in enabled:
        if not operators[name].settings.lineage:
            yield GraphError(
                f"lineage scope {scope} leads through {name}, which says lineage=False; take one of the two back",
                scope.location,
            )
