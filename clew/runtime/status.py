"""What a log says of a run, for people to look at; read-only, and safe while the run goes on."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clew.errors import WrongLog
from clew.ids import Port
from clew.pipeline.graph import Graph, OperatorSpec
from clew.protocol.rows import OperatorRow
from clew.store.base import SUPERVISOR, Backlog, KeptStore, ProcessRow, Store, group_of, group_role


@dataclass(frozen=True)
class OperatorStatus:
    """One operator, as the log has it."""

    operator: str
    group: str
    #: Running is what the log knows: an operator that was killed is still called so, until it is run again.
    status: str
    incarnation: int
    turn: int = 0
    #: Input port -> the last event acknowledged.
    acknowledged: Mapping[str, int] = field(default_factory=dict)
    #: Input port -> what waits there.
    backlog: Mapping[str, Backlog] = field(default_factory=dict)
    #: Output port -> the last event sent.
    sent: Mapping[str, int] = field(default_factory=dict)
    #: Connection -> the last write action, and how many of them are not known to be done.
    writes: Mapping[str, int] = field(default_factory=dict)
    undone_writes: Mapping[str, int] = field(default_factory=dict)
    #: How many records came too late, and how much is set aside and not decided on.
    late: int = 0
    quarantined: int = 0
    #: Whether the pipeline as it is declared now has it.
    declared: bool = True

    @property
    def finished(self) -> bool:
        return self.status == "finished" and not any(self.undone_writes.values())


@dataclass(frozen=True)
class ProcessStatus:
    """A process that has a role in a run, or had it last, as the log has it."""

    #: What it does: "supervisor", or "group NAME".
    role: str
    group: str | None
    host: str
    pid: int
    #: Whether its lease lasts, and it is not known to be gone all the same; and for how many seconds the lease does.
    alive: bool
    left: float
    #: Seconds since it was heard of last.
    silent: float
    #: Whether it gave its role up by itself.
    ended: bool
    #: How often another process took the place of the one before, and how often the group was restarted in this one.
    restarts: int
    restarts_inside: int = 0
    #: Operator -> its incarnation, of those in the group.
    incarnations: Mapping[str, int] = field(default_factory=dict)
    #: What the process failed with last, or how the one before it ended, as its supervisor has seen it.
    last_error: str = ""


@dataclass(frozen=True)
class RunStatus:
    """A run, as its log has it."""

    pipeline: str
    run_id: str
    log: str
    operators: tuple[OperatorStatus, ...]
    #: The supervisor first; it is the only one where groups are threads of its process.
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def events(self) -> int:
        """How many events have been logged since the run began."""
        return sum(count for operator in self.operators for count in operator.sent.values())

    @property
    def finished(self) -> bool:
        return all(operator.finished for operator in self.operators if operator.declared)

    @property
    def started(self) -> bool:
        """Whether any operator has ever run on this log."""
        return any(operator.incarnation > 0 for operator in self.operators)


def read_status(graph: Graph, store: KeptStore, log: str, lives: Callable[[ProcessRow], bool]) -> RunStatus:
    """Read the state of all operators and processes; raises WrongLog when the log is of other operators altogether.

    `lives` tells whether a process is there, as far as that can be told from here.
    """
    rows = {row.operator: row for row in store.operators()}
    if rows and not rows.keys() & graph.operators.keys():
        raise WrongLog(
            f"the log {log} is of operators {', '.join(sorted(rows))}, of which pipeline {graph.name} has none; "
            "use another --log"
        )
    declared = [_declared(spec, rows.get(name), store) for name, spec in graph.operators.items()]
    gone = [_gone(row, store) for name, row in sorted(rows.items()) if name not in graph.operators]
    processes = _processes(graph, {row.role: row for row in store.processes()}, rows, lives)
    return RunStatus(graph.name, store.run_id, log, (*declared, *gone), tuple(processes))


def _processes(
    graph: Graph,
    found: Mapping[str, ProcessRow],
    operators: Mapping[str, OperatorRow],
    lives: Callable[[ProcessRow], bool],
) -> Iterable[ProcessStatus]:
    """Describe who has a role that lasts: the supervisor, the groups, and those that the pipeline has no more."""
    gone = [role for role in found if group_of(role) not in (None, *graph.groups)]
    deaths = found[SUPERVISOR].report.get("deaths", {}) if SUPERVISOR in found else {}
    for role in (SUPERVISOR, *map(group_role, graph.groups), *gone):
        if role in found:
            group = group_of(role)
            names = graph.groups.get(group, ()) if group is not None else ()
            incarnations = {name: operators[name].incarnation for name in names if name in operators}
            yield _process(found[role], group, incarnations, deaths.get(group, ""), lives(found[role]))


def _process(
    row: ProcessRow, group: str | None, incarnations: Mapping[str, int], death: str, alive: bool
) -> ProcessStatus:
    figures = list(row.report.get("operators", {}).values())
    errors = [row.report.get("error", ""), *(own.get("last_error", "") for own in figures), death]
    return ProcessStatus(
        row.role, group, row.holder.host, row.holder.pid,
        alive=alive,
        left=max(row.left, 0.0),
        silent=row.silent,
        ended=row.given_up,
        restarts=row.starts - 1,
        # All operators of a group are restarted together.
        restarts_inside=max((own.get("restarts", 0) for own in figures), default=0),
        incarnations=incarnations,
        last_error=next(filter(None, errors), ""),
    )  # fmt: skip


def _declared(spec: OperatorSpec, row: OperatorRow | None, store: Store) -> OperatorStatus:
    context = _context(spec.name, store)
    writes = {name: context.get("writes", {}).get(name, 0) for name in spec.sinks}
    return OperatorStatus(
        spec.name, spec.group, row.status if row else "dead", row.incarnation if row else 0,
        turn=context.get("turn", 0),
        acknowledged={port: context.get("latest", {}).get(port, 0) for port in spec.inputs},
        backlog={port: store.backlog(Port(spec.name, port)) for port in spec.inputs},
        sent={port: context.get("sent", {}).get(port, 0) for port in spec.outputs},
        writes=writes,
        undone_writes={name: _undone(Port(spec.name, name), last, store) for name, last in writes.items()},
        late=_late(spec, store),
        quarantined=context.get("held", 0),
    )  # fmt: skip


def _gone(row: OperatorRow, store: Store) -> OperatorStatus:
    """Describe an operator that the log knows and the pipeline has no more."""
    context = _context(row.operator, store)
    return OperatorStatus(
        row.operator, "", row.status, row.incarnation, context.get("turn", 0),
        acknowledged=context.get("latest", {}), sent=context.get("sent", {}), declared=False,
    )  # fmt: skip


def _context(operator: str, store: Store) -> Mapping[str, Any]:
    state = store.state(operator)
    return state.context if state is not None else {}


def _late(spec: OperatorSpec, store: Store) -> int:
    """Return how many records the operator's windows have counted as late."""
    state = store.state(spec.name)
    own = [state.state.get(function.name) for function in spec.functions] if state and spec.general is None else []
    return sum(one.get("late", 0) for one in own if isinstance(one, dict))


def _undone(port: Port, last: int, store: Store) -> int:
    """Count undone writes; they are performed in order, so the first one tells, and no body need be read."""
    first = store.undone_writes(port, 1)
    # The run may have logged further writes since its counters were read.
    return max(last - first[0].number + 1, 1) if first else 0
