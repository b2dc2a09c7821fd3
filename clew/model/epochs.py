"""The implementation model of Section 4 in small: tasks that take a snapshot of their state at each epoch's border.

Names and numbers are those of Veresov et al. (ECOOP 2024). It is here because the paper proves it failure transparent
(Theorem 6.9): a judge who knows the answer beforehand is himself judged by it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from clew.model.definitions import FailureTransparency, Observability, Rule, Rules

T = TypeVar("T")

#: The data of a message that ends an epoch.
BORDER = "|"


class Message(NamedTuple):
    """An event, or the border that ends an epoch."""

    epoch: int
    data: str


Stream = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A task: its function from state and event to state and output events, its input streams and its output stream."""

    name: str
    function: Callable[[str, str], tuple[str, tuple[str, ...]]]
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Tasks in an acyclic graph, and what is on its streams at first: all of the input, and nothing else."""

    tasks: tuple[Task, ...]
    streams: tuple[Stream, ...]


# Named tuples and not dataclasses, for they are hashed and compared very often.
class State(NamedTuple):
    """A task's archive of snapshots, that of epoch e at place e, and its volatile state, None after a failure."""

    archive: tuple[str, ...] = ("",)
    volatile: tuple[int, str] | None = (1, "")


class Configuration(NamedTuple):
    """States per task, how much each task has consumed of each input, and what each stream holds.

    The paper also counts what a task has produced: here that is the length of its output stream.
    """

    states: tuple[State, ...]
    consumed: tuple[tuple[int, ...], ...]
    streams: tuple[Stream, ...]


Steps = Iterator[Configuration]
#: Messages with the numbers of their streams and their numbers there.
Output = frozenset[tuple[int, int, Message]]


def start(flow: Dataflow) -> Configuration:
    """Return the initial configuration (Definition 6.8)."""
    return Configuration(
        tuple(State() for _ in flow.tasks), tuple((0,) * len(task.inputs) for task in flow.tasks), flow.streams
    )


def common_epoch(c: Configuration) -> int:
    """Return the greatest epoch of which every task has a snapshot (Definition 4.2)."""
    return min(len(state.archive) - 1 for state in c.states)


def output(c: Configuration) -> Output:
    """Return the messages up to the greatest common epoch (Definition 4.3)."""
    last = common_epoch(c)
    return frozenset(
        (stream, number, message)
        for stream, messages in enumerate(c.streams)
        for number, message in enumerate(messages)
        if message.epoch <= last
    )


OUTPUT: Observability[Configuration, Output] = Observability(output, frozenset.issubset)


def latest_common_snapshot(flow: Dataflow, c: Configuration) -> Configuration:
    """Return the configuration that recovery goes back to (Definition 4.5)."""
    last = common_epoch(c)
    # Messages of a stream come in the order of their epochs, so what is in the output is a prefix of each.
    kept = [tuple(message for message in stream if message.epoch <= last) for stream in c.streams]
    return Configuration(
        tuple(State(state.archive[: last + 1], (last + 1, state.archive[last])) for state in c.states),
        tuple(tuple(len(kept[stream]) for stream in task.inputs) for task in flow.tasks),
        tuple(first or messages for first, messages in zip(flow.streams, kept)),
    )


def rules_of(flow: Dataflow) -> Rules[Configuration]:
    """Return the rules I (Definition 6.6), one of each local rule per task."""
    local = [rule(flow, place) for rule in (event, border, fail) for place in range(len(flow.tasks))]
    return Rules((*local, recover(flow)))


def transparency(flow: Dataflow, rules: Rules[Configuration]) -> FailureTransparency[Configuration, Output]:
    """Claim Theorem 6.9 for one dataflow; the rules F are those of Definition 6.7."""
    failures = frozenset(name for name in rules.names if name.startswith("F-"))
    return FailureTransparency(rules, failures, OUTPUT, (start(flow),))


def event(flow: Dataflow, place: int) -> Rule[Configuration]:
    """I-Event: a task consumes an event of its epoch from one of its inputs, and produces events."""
    task = flow.tasks[place]

    def successors(c: Configuration) -> Steps:
        state = c.states[place]
        for index, message in enumerate(_next(c, task, place)):
            if state.volatile and message and message.data != BORDER and message.epoch == state.volatile[0]:
                epoch, value = state.volatile
                after, words = task.function(value, message.data)
                produced = tuple(Message(epoch, word) for word in words)
                yield _stepped(c, task, place, state._replace(volatile=(epoch, after)), {index}, produced)

    return Rule(f"I-Event {task.name}", successors)


def border(flow: Dataflow, place: int) -> Rule[Configuration]:
    """I-Border: a task whose inputs all are at the border of its epoch takes a snapshot and passes the border on."""
    task = flow.tasks[place]

    def successors(c: Configuration) -> Steps:
        state = c.states[place]
        if state.volatile and set(_next(c, task, place)) == {Message(state.volatile[0], BORDER)}:
            epoch, value = state.volatile
            after = State((*state.archive, value), (epoch + 1, value))
            yield _stepped(c, task, place, after, set(range(len(task.inputs))), (Message(epoch, BORDER),))

    return Rule(f"I-Border {task.name}", successors)


def fail(flow: Dataflow, place: int) -> Rule[Configuration]:
    """F-Fail: a task loses its volatile state."""

    def successors(c: Configuration) -> Steps:
        yield c._replace(states=_put(c.states, place, c.states[place]._replace(volatile=None)))

    return Rule(f"F-Fail {flow.tasks[place].name}", successors)


def recover(flow: Dataflow) -> Rule[Configuration]:
    """F-Recover: if any task has failed, all go back to the latest common snapshot."""

    def successors(c: Configuration) -> Steps:
        if any(state.volatile is None for state in c.states):
            yield latest_common_snapshot(flow, c)

    return Rule("F-Recover", successors)


def _next(c: Configuration, task: Task, place: int) -> list[Message | None]:
    """Return the next message on each input of a task, None where there is none yet."""
    rests = [c.streams[stream][read:] for stream, read in zip(task.inputs, c.consumed[place])]
    return [rest[0] if rest else None for rest in rests]


def _stepped(
    c: Configuration, task: Task, place: int, state: State, consuming: set[int], produced: Stream
) -> Configuration:
    """S-Step: apply the actions of a local step to the sequence numbers and the messages (Definition 4.1)."""
    consumed = tuple(read + (index in consuming) for index, read in enumerate(c.consumed[place]))
    streams = _put(c.streams, task.output, c.streams[task.output] + produced)
    return Configuration(_put(c.states, place, state), _put(c.consumed, place, consumed), streams)


def _put(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])
