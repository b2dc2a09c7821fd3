"""What the tests of the protocol share: a log in memory, and short ways to say events, turns and Output Sets."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any
from zlib import crc32

from clew.ids import Port
from clew.pipeline.operators import Operator, WindowLogic
from clew.pipeline.windows import State, Window
from clew.protocol.log.alg2_update import Update, update
from clew.protocol.log.alg3_generate import Output, Productions, generate
from clew.protocol.log.alg9_processing import recover_processing
from clew.protocol.log.context import Arrival, Context, Logic, fresh
from clew.protocol.rows import END, Bodies, EventRun, Header
from clew.protocol.step import LogEvents, Step, StoreState
from clew.store.base import TABLES, Table, Topology
from clew.store.memory import MemoryStore

ALL = 1_000_000


def bodies(*texts: str) -> Bodies:
    """Return inline bodies, one per text."""
    data = [text.encode() for text in texts]
    return Bodies(tuple(map(len, data)), tuple(map(crc32, data)), b"".join(data))


def output(*texts: str, counts: Sequence[int] | None = None) -> Output:
    """Return the output events with these texts as bodies; by default one per Input Set."""
    headers = tuple(Header(1, len(text)) for text in texts)
    return Output(
        tuple(counts if counts is not None else [1] * len(texts)), headers, (bodies(*texts),) if texts else ()
    )


def batch(*texts: str) -> EventRun:
    """Return events of a source that are not numbered yet."""
    headers = tuple(Header(1, len(text)) for text in texts)
    return EventRun(Port("OP", "out"), 0, headers, (bodies(*texts),) if texts else ())


def windowed(*ports: str, **windows: Window) -> WindowLogic:
    """Return the logic of an operator whose generative functions have these windows."""
    return WindowLogic(windows, ports or ("in",))


def started(logic: Logic, *outputs: str, operator: str = "OP", **senders: str) -> Context:
    """Return the context of an operator that never ran; `senders` are by input port, `S.out` on `in` by default."""
    ports = {name: Port.parse(text) for name, text in (senders or {"in": "S.out"}).items()}
    return fresh(operator, ports, outputs or ("out",), logic.initial())


def arrivals(*numbers: int, port: str = "in", facts: Any = None) -> list[Arrival]:
    """Return events as they come in on a port."""
    return [Arrival(port, number, 1, 1, facts) for number in numbers]


def panes(*starts: int, size: int = 1) -> list[Any]:
    """Return the facts of an event with one record at each of these times, for intervals of this size."""
    return [max(starts, default=None), [[start // size * size, 1, [0]] for start in sorted(starts)]]


def end(number: int, port: str = "in") -> Arrival:
    """Return the end of the stream on a port."""
    return Arrival(port, number, end=True)


def one_each(done: Update, port: str = "out") -> list[Productions]:
    """Produce one output event for each Input Set that closed."""
    if not done.closed:
        return []
    texts = [f"of {closed.number}" for closed in done.closed]
    return [Productions(tuple(closed.number for closed in done.closed), {port: output(*texts)})]


def writes_of(step: Step, kind: type) -> list[Any]:
    """Return the writes of a step that are of one kind."""
    return [write for write in step.writes if isinstance(write, kind)]


def without_state(step: Step) -> Step:
    """Return the step as the paper's Algorithm 2 has it: it acknowledges, but STATE waits for generation."""
    return replace(step, writes=tuple(write for write in step.writes if not isinstance(write, StoreState)))


@contextmanager
def unchanged(*values: Any) -> Iterator[None]:
    """Assert that what happens inside changes none of the values."""
    before = deepcopy(values)
    yield
    assert values == before


class Log:
    """A log in memory of a pipeline given by its links: `OP1.out > OP3.in`."""

    def __init__(self, *links: str) -> None:
        ends = [[Port.parse(name.strip()) for name in link.split(">")] for link in links]
        operators = sorted({port.operator for link in ends for port in link})
        self.store = MemoryStore()
        self.store.declare(Topology("paper", "", tuple(operators), tuple((a, b) for a, b in ends)))
        self.links = {receiver: sender for sender, receiver in ends}
        self.incarnations = {operator: self.store.take_over(operator) for operator in operators}
        self.sent: dict[Port, int] = {}

    def commit(self, operator: str, step: Step) -> None:
        self.store.commit(operator, self.incarnations[operator], step.writes, step.durable)

    def send(self, port: str, *events: Any) -> None:
        """Log events of a port: each is END, or the windows that its records fall into, or None for no facts."""
        sender = Port.parse(port)
        receivers = [receiver for receiver, link in self.links.items() if link == sender]
        headers, texts = [], []
        for windows in events:
            if windows is END:
                headers.append(END)
                continue
            headers.append(Header(1, 1, {str(receiver): ("", windows) for receiver in receivers}))
            texts.append("x")
        first = self.sent.get(sender, 0) + 1
        run = EventRun(sender, first, tuple(headers), (bodies(*texts),) if texts else ())
        self.sent[sender] = run.last
        self.commit(sender.operator, Step((LogEvents(run),)))

    def waiting(self, context: Context, limit: int = ALL) -> list[Arrival]:
        """Return what waits on the operator's inputs, by port, as control sees it."""
        return [
            Arrival(name, run.first, header.rows, header.size, header.facts.get(str(port), ("", None))[1], header.end)
            for name in context.senders
            for port in [Port(context.operator, name)]
            for run in self.store.unacknowledged(port, context.latest.get(name, 0), limit, ALL)
            for header in run.headers
        ]

    def turn(
        self,
        context: Context,
        logic: Logic,
        events: Sequence[Arrival] | None = None,
        make: Callable[[Update], list[Productions]] = one_each,
        sink: str | None = None,
    ) -> Context:
        """Run one turn over these events, or over all that wait, and commit it."""
        done = update(context, logic, self.waiting(context) if events is None else events)
        after, step = generate(done, [] if sink else make(done), sink)
        self.commit(context.operator, step)
        return after

    def recover(self, context: Context, logic: Logic, headers: dict[tuple[str, int], Arrival] | None = None) -> Context:
        """Restart the operator as its fresh context and Algorithm 9 have it."""
        operator = context.operator
        self.incarnations[operator] = self.store.take_over(operator)
        return recover_processing(
            replace(context, state=logic.initial()),
            logic,
            self.store.state(operator),
            self.store.members(operator),
            self.store.open_sets(operator),
            self.store.keyed(operator),
            headers,
        )

    def rows(self, name: Table, *columns: str, **where: Any) -> list[tuple[Any, ...]]:
        """Return the columns (all by default) of those rows of a table in which other columns have given values."""
        names = TABLES[name]
        kept = [row for row in self.store.table(name) if all(row[names.index(c)] == v for c, v in where.items())]
        return [tuple(row[names.index(column)] for column in columns or names) for row in kept]


class Pairs(Operator):
    """Pairs up events, and counts them all in its global state, which `generate` sees."""

    def initial(self) -> State:
        return {"total": 0}

    def assign(self, event: Any, state: State) -> Sequence[Any]:
        state["total"] += 1
        return ((state["total"] + 1) // 2,)

    def ready(self, state: State, opened: Any) -> Sequence[Any]:
        return [key for key in opened if 2 * key <= state["total"]]


class Choosy(Operator):
    """Takes what the facts say: a list of keys; a key is ready when an event has the key in `close`."""

    def initial(self) -> State:
        return {"close": []}

    def assign(self, event: Any, state: State) -> Sequence[Any]:
        facts = event.facts or {}
        state["close"] = facts.get("close", [])
        return facts.get("keys", [])

    def ready(self, state: State, opened: Any) -> Sequence[Any]:
        return [key for key in state["close"] if key in opened]

    def flush(self, state: State, opened: Any) -> Sequence[Any]:
        return [key for key in opened if key != "dropped"]
