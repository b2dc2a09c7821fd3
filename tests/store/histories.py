"""Random histories of a log: steps that mostly follow the protocol, and some that must be refused.

A step is drawn as plain numbers and read against what the log holds by then, so that Hypothesis can
shorten a history and it still makes sense.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from clew.ids import InputSetId, Port, writes_port
from clew.protocol.rows import DROPPED, AsideRow, Assignment, Bodies, Every, Own
from clew.protocol.step import (
    AddReadAction,
    CompleteReadAction,
    DropReadEvent,
    FinishReadEvent,
    FixSchema,
    LogDecision,
    LogReadEvent,
    LogStateEvent,
    Rejoin,
    ResolveAside,
    SetAside,
    SetOperator,
    StoreKeyed,
    StoreState,
    Write,
)
from tests.store.logs import (
    COUNTER_IN,
    COUNTER_OUT,
    MAPPER_IN,
    MAPPER_OUT,
    READER_OUT,
    SENDERS,
    SINK_IN,
    SINK_TABLE,
    ack,
    events,
    finish,
    in_file,
    inline,
    lineage,
    listed,
    opened,
    writes,
    written,
)

OUT = {"reader": READER_OUT, "mapper": MAPPER_OUT, "counter": COUNTER_OUT}
IN = {"mapper": MAPPER_IN, "counter": COUNTER_IN, "sink": SINK_IN}
SOURCE_OPS = (
    "send",
    "send",
    "send",
    "send",
    "end",
    "state",
    "schema",
    "action",
    "complete",
    "effect",
    "finish_effect",
    "drop_effect",
)
MIDDLE_OPS = (
    "take",
    "take",
    "take",
    "finish",
    "finish",
    "finish",
    "send",
    "send",
    "end",
    "state",
    "state_event",
    "side_read",
    "label",
    "run",
    "rejoin",
    "rejoin",
    "aside",
    "resolve",
    "decide",
    "keyed",
)
SINK_OPS = (
    "take",
    "take",
    "take",
    "finish",
    "finish",
    "finish",
    "write",
    "write",
    "written",
    "written",
    "state",
    "side_read",
    "label",
)
OPS = {"reader": SOURCE_OPS, "mapper": MIDDLE_OPS, "counter": MIDDLE_OPS, "sink": SINK_OPS}


@dataclass(frozen=True)
class Draw:
    """One write, before it is read against the log: what to do, and numbers that choose how."""

    op: int
    a: int
    b: int
    #: How far the numbers are off; 0 but for writes that should be refused.
    off: int


draws = st.builds(Draw, st.integers(0, 99), st.integers(0, 5), st.integers(0, 5), st.sampled_from([0] * 25 + [1, -1]))
KINDS = ("commit",) * 14 + ("collect", "collect", "take over", "zombie", "swap", "reopen")


@st.composite
def _step(draw: st.DrawFn) -> tuple[str, Any, list[Draw]]:
    kind = draw(st.sampled_from(KINDS))
    match kind:
        case "commit" | "zombie":
            return kind, draw(st.sampled_from(sorted(OPS))), draw(st.lists(draws, min_size=1, max_size=4))
        case "collect":
            return kind, draw(st.sampled_from([0, 0, 0, 1, 3])), []
        case "take over":
            return kind, draw(st.sampled_from(sorted(OPS))), []
        case _:
            return kind, None, []


steps = st.lists(_step(), min_size=15, max_size=45)


@dataclass
class World:
    """What the next write must follow."""

    sent: dict[Port, int] = field(default_factory=dict)
    taken: dict[Port, int] = field(default_factory=dict)
    open: dict[str, list[int]] = field(default_factory=dict)
    last_set: dict[str, int] = field(default_factory=dict)
    last_state: dict[str, int] = field(default_factory=dict)
    action: int = 0
    written: int = 0
    undone_writes: list[int] = field(default_factory=list)
    #: What was taken into listed Input Sets: (operator, first, count, Input Sets).
    listed: list[tuple[str, int, int, set[int]]] = field(default_factory=list)
    decisions: int = 0
    #: The last Input Set that lineage was logged for, by port.
    made: dict[Port, int] = field(default_factory=dict)
    #: The first one that was closed late.
    late: dict[Port, int] = field(default_factory=dict)
    asides: list[tuple[str, int]] = field(default_factory=list)

    def after(self, operator: str, parts: list[Draw]) -> tuple["World", list[Write]]:
        """Return the writes of a commit, and the world if it is accepted."""
        world = deepcopy(self)
        made = [write for part in parts for write in world._make(operator, part)]
        return world, made

    def _make(self, operator: str, draw: Draw) -> list[Write]:
        op = OPS[operator][draw.op % len(OPS[operator])]
        made: list[Write] = getattr(self, f"_{op}")(operator, draw)
        return made

    def _send(self, operator: str, draw: Draw, end: bool = False) -> list[Write]:
        port, count = OUT[operator], draw.a + 1
        first = self.sent.get(port, 0) + 1 + draw.off
        self.sent[port] = first + count - 1
        bodies: tuple[Bodies, ...] | None = None
        if not end and draw.b == 1:
            bodies = ()
        if not end and draw.b in (2, 3) and count > 1:
            bodies = (inline(first, 1), in_file(first + 1, count - 1, f"f{self.sent[port] // 4}", draw.b))
        return [events(port, first, count, bodies, end), *self._lineage(port, first, count, draw)]

    def _lineage(self, port: Port, first: int, count: int, draw: Draw) -> list[Write]:
        if port == READER_OUT:
            # A read action stands in the place of an Input Set, and gives events in many commits.
            return [lineage(port, first, max(self.action, 1), (count, 1))]
        each = draw.b + 1
        counts = ((0, draw.b), (each, count // each), (count % each, 1))
        sets = sum(repeat for _, repeat in counts)
        # An Input Set is made into an Output Set once; some are closed long after later ones.
        if draw.op % 3 == 0:
            self.late[port] = made = self.late.get(port, 500) - sets - draw.a
        else:
            made = self.made.get(port, 500) + draw.a + 1
            self.made[port] = made + sets
        return [lineage(port, first, made, *counts)]

    def _end(self, operator: str, draw: Draw) -> list[Write]:
        return self._send(operator, draw, end=True)

    def _take(self, operator: str, draw: Draw) -> list[Write]:
        receiver = IN[operator]
        first = self.taken.get(receiver, 0) + 1
        count = min(draw.a + 1, self.sent.get(SENDERS[receiver], 0) - first + 1)
        if count < 1:
            return []
        self.taken[receiver] = first + count - 1
        return [ack(receiver, first + draw.off, count, self._assignment(operator, draw, count))]

    def _assignment(self, operator: str, draw: Draw, count: int) -> Assignment:
        still_open = self.open.setdefault(operator, [])
        new = self.last_set.get(operator, 0) + 1
        if draw.b == 0:
            return listed()
        if draw.b == 1:
            self._opens(operator, new, count)
            return Own(InputSetId(new))
        if draw.b == 2:
            skip = draw.a % 2
            self._opens(operator, new, (skip + count - 1) // 2 + 1)
            return Every(InputSetId(new), 2, skip)
        if draw.b == 3 and still_open:
            return self._listed(operator, count, still_open[-2:])
        self._opens(operator, new, 2)
        return self._listed(operator, count, [new, new + 1])

    def _listed(self, operator: str, count: int, sets: list[int]) -> Assignment:
        self.listed.append((operator, self.taken[IN[operator]] - count + 1, count, set(sets)))
        return listed(*sets)

    def _rejoin(self, operator: str, draw: Draw) -> list[Write]:
        """Let events of an open Input Set join another open one."""
        still_open = set(self.open.get(operator, []))
        for owner, first, count, sets in reversed(self.listed):
            into = sorted(still_open - sets)
            if owner == operator and sets & still_open and into:
                target = into[draw.a % len(into)]
                sets.add(target)
                return [Rejoin(IN[operator], first, count + max(draw.off, 0) * 1_000, first, InputSetId(target))]
        return []

    def _aside(self, operator: str, draw: Draw) -> list[Write]:
        """Set aside events that were taken and are in an open Input Set, and so are not collected."""
        still_open = set(self.open.get(operator, []))
        for owner, first, count, sets in reversed(self.listed):
            if owner == operator and sets & still_open:
                number = 1 + len([1 for name, _ in self.asides if name == operator])
                self.asides.append((operator, number))
                spans = ((IN[operator].name, first, count, first),)
                records = (draw.a,) if draw.b % 2 else None
                row = AsideRow(number, InputSetId(1), ("f", [draw.a]), {"s": 1}, spans, records, {"kind": "E"})
                return [SetAside(operator, (row,))]
        return []

    def _resolve(self, operator: str, draw: Draw) -> list[Write]:
        own = [number for name, number in self.asides if name == operator]
        retried = InputSetId(draw.b) if draw.b else None
        return [ResolveAside(operator, own[draw.a % len(own)], retried)] if own else []

    def _decide(self, operator: str, draw: Draw) -> list[Write]:
        self.decisions += 1
        return [LogDecision(operator, 1_000 + self.decisions, {"f": [draw.a]})]

    def _keyed(self, operator: str, draw: Draw) -> list[Write]:
        value = None if draw.off or draw.b == 0 else {"b": draw.b}
        return [StoreKeyed(operator, (("f", f"k{draw.a}", value),))]

    def _opens(self, operator: str, first: int, count: int) -> None:
        self.open[operator] += range(first, first + count)
        self.last_set[operator] = first + count - 1

    def _finish(self, operator: str, draw: Draw) -> list[Write]:
        still_open = self.open.setdefault(operator, [])
        done = [number for number in range(1, self.last_set.get(operator, 0) + 1) if number not in still_open]
        if draw.off:
            return [finish(operator, done[draw.a % len(done)], draw.b + 1)] if done else []
        if not still_open:
            return []
        at = draw.a % len(still_open)
        count = 1
        while at + count < len(still_open) and still_open[at + count] == still_open[at] + count and count <= draw.b:
            count += 1
        first = still_open[at]
        del still_open[at : at + count]
        dropped = [(number, DROPPED) for number in range(first, first + count) if draw.b > 3]
        return [opened(operator, *dropped), finish(operator, first, count)]

    def _state(self, operator: str, draw: Draw) -> list[Write]:
        self.last_state[operator] = self.last_state.get(operator, 0) + draw.a + draw.off
        return [StoreState(operator, self.last_state[operator], {"a": draw.a}, {"b": [draw.b, None]})]

    def _state_event(self, operator: str, draw: Draw) -> list[Write]:
        return [LogStateEvent(operator, 100 + draw.a, InputSetId(draw.b + 1), {"b": draw.b})]

    def _schema(self, operator: str, draw: Draw) -> list[Write]:
        return [FixSchema(OUT[operator], b"\x00%d" % draw.off)]

    def _action(self, operator: str, draw: Draw) -> list[Write]:
        self.action += draw.a + draw.off
        return [AddReadAction(operator, "files", self.action, f"read {draw.b}")]

    def _complete(self, operator: str, draw: Draw) -> list[Write]:
        return [CompleteReadAction(operator, "files", self.action + draw.off)]

    def _effect(self, operator: str, draw: Draw) -> list[Write]:
        effect = inline(draw.a, 1) if draw.b % 2 else in_file(draw.a, 1, f"effect{draw.a}")
        return [LogReadEvent(operator, "files", max(self.action, 1), effect)]

    def _side_read(self, operator: str, draw: Draw) -> list[Write]:
        effect = inline(draw.a, 1) if draw.b % 2 else in_file(draw.a, 1, f"side{draw.a}")
        return [LogReadEvent(operator, "prices", draw.a + 1, effect, InputSetId(draw.b + 1), f"price {draw.a}")]

    def _finish_effect(self, operator: str, draw: Draw) -> list[Write]:
        return [FinishReadEvent(operator, "files", self.action + draw.off)]

    def _drop_effect(self, operator: str, draw: Draw) -> list[Write]:
        return [DropReadEvent(operator, "files", draw.a)]

    def _label(self, operator: str, draw: Draw) -> list[Write]:
        return [opened(operator, *[(number, ("main", [draw.a, "k"])) for number in self.open.get(operator, [])])]

    def _run(self, operator: str, draw: Draw) -> list[Write]:
        return [SetOperator(operator, "running" if draw.a else "finished")]

    def _write(self, operator: str, draw: Draw) -> list[Write]:
        first = self.written + 1 + draw.off
        self.written += 1
        self.undone_writes.append(first)
        last = self.taken.get(SINK_IN, 0)
        named = ((MAPPER_OUT, max(last - draw.a, 1), 1),) if last and draw.b % 2 else ()
        bodies = (in_file(first, 1, f"w{first // 2}"),) if draw.b > 2 else ()
        made = lineage(Port("sink", writes_port(SINK_TABLE.name)), first, first + draw.b, (1, 1))
        return [writes(first, named, bodies=bodies), made]

    def _written(self, operator: str, draw: Draw) -> list[Write]:
        if draw.off or not self.undone_writes:
            return [written(max(draw.a, 1), draw.b + 1)] if draw.off else []
        return [written(self.undone_writes.pop(draw.a % len(self.undone_writes)))]


__all__ = ["IN", "OUT", "Draw", "World", "steps"]
