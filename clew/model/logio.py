"""Clew's protocol in small, as rules: a chain of source, operator and writer, their log, and a sink outside.

An operator keeps in memory the rows that it wants the log to hold, and a commit makes the log hold them (S1). Its
channel is a cache of what its sender has logged. A crash loses its memory; recovery makes it again from the log. Every
rule is built by a function of its own, so that one can be swapped for another and the difference judged.

What is observed is what the sink holds. Failures are not counted: the configurations are finitely many, with any
number of crashes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from clew.model.definitions import FailureTransparency, Observability, Rule, Rules

#: What an event carries. An operator's output carries its whole history, so that no mistake in it is forgotten.
Body = str
#: The body of the event that ends a stream.
END: Body = "."

#: The operators of the chain, by their places in it.
SOURCE, OPERATOR, WRITER = PLACES = (0, 1, 2)
NAMES = ("source", "operator", "writer")


@dataclass(frozen=True, slots=True)
class Program:
    """What a chain reads and what its operator does with it.

    `window` events make an Input Set; the end of the stream flushes what is left. To generate, the function draws
    one of `draws`: with more than one it is non-deterministic. A turn takes up to `turn` events. With `zombies`, what
    an operator sent off before it died may still arrive after it.
    """

    inputs: tuple[Body, ...] = ("a", "b")
    window: int = 1
    draws: tuple[Body, ...] = ("",)
    turn: int = 1
    zombies: bool = False


# Configurations are named tuples and not dataclasses: they are hashed and compared hundreds of thousands of times.
class Rows(NamedTuple):
    """What the log holds of one operator, or will when a turn commits."""

    #: The number of the last event acknowledged; of a source, its offset.
    taken: int = 0
    #: The Input Set that is open: events acknowledged and undone.
    opened: tuple[Body, ...] = ()
    #: The global state.
    state: Body = ""
    #: Events logged on the port, numbered from 1; of the writer, its write actions.
    sent: tuple[Body, ...] = ()
    #: How many of the write actions are done.
    done: int = 0


class Memory(NamedTuple):
    """The volatile state of an operator."""

    #: As the log will hold them after the turn.
    rows: Rows = Rows()
    #: The Input Set that is complete and not generated yet; `END` is its last member at a flush.
    due: tuple[Body, ...] = ()
    #: Events that wait, as far as the channel knows; the first one follows `rows.taken`.
    inbox: tuple[Body, ...] = ()
    #: Whether the channel must look into the log.
    stale: bool = False
    #: How many of the events logged the receiver was told of.
    told: int = 0
    #: Whether the sink has confirmed the first write action that is undone.
    answered: bool = False


class Sink(NamedTuple):
    """The outside system: what it holds, and the number of the last write, kept with it in one transaction."""

    held: tuple[Body, ...] = ()
    marker: int = 0


class Late(NamedTuple):
    """What an operator sent off before it died: a commit of these rows, or else the write of this number."""

    place: int
    rows: Rows | None = None
    write: int = 0


class Configuration(NamedTuple):
    """The log and the memory of each operator, None while it is down, the sink, and what is still on its way."""

    log: tuple[Rows, ...]
    memory: tuple[Memory | None, ...]
    sink: Sink = Sink()
    late: Late | None = None

    def logging(self, place: int, rows: Rows) -> "Configuration":
        log = (*self.log[:place], rows, *self.log[place + 1 :])
        return Configuration(log, self.memory, self.sink, self.late)

    def having(self, place: int, memory: Memory | None) -> "Configuration":
        memories = (*self.memory[:place], memory, *self.memory[place + 1 :])
        return Configuration(self.log, memories, self.sink, self.late)


Steps = Iterator[Configuration]

INITIAL = Configuration((Rows(),) * 3, (Memory(),) * 3)


def _is_prefix(shorter: tuple[Body, ...], longer: tuple[Body, ...]) -> bool:
    return longer[: len(shorter)] == shorter


#: What the sink holds; it may only grow at its end.
SINK: Observability[Configuration, tuple[Body, ...]] = Observability(lambda c: c.sink.held, _is_prefix)


def rules_of(program: Program) -> Rules[Configuration]:
    """Return the rules of a chain, those that fail included."""
    processing = (read(program), assign(program), flush(program), generate(program), take_write(program))
    turns = (*map(commit, PLACES), wake(SOURCE), wake(OPERATOR), write(), mark_done())
    failing = (*map(crash, PLACES), *map(recover, PLACES), lose_answer())
    late = (*map(crash_committing, PLACES), crash_writing(), arrive()) if program.zombies else ()
    return Rules((*processing, *turns, *failing, *late))


#: The rules that may happen at any time or never.
FAULTS = frozenset(
    [f"{name} crashes" for name in NAMES]
    + [f"{name} crashes while it commits" for name in NAMES]
    + ["writer crashes while it writes", "writer loses an answer", "what was late arrives"]
)
#: The rules F of Definition 5.10.
FAILURES = FAULTS | {f"{name} recovers" for name in NAMES}


def transparency(
    rules: Rules[Configuration], *initial: Configuration
) -> FailureTransparency[Configuration, tuple[Body, ...]]:
    """Claim that failures cannot be noticed by who looks at the sink."""
    return FailureTransparency(rules, FAILURES & rules.names, SINK, initial or (INITIAL,))


def fed(program: Program) -> Configuration:
    """Return the configuration in which the source has logged all it has, and nothing else has happened.

    There are far fewer configurations from here on, and all that operator and writer can do among themselves.
    """
    events = (*program.inputs, END)
    rows = Rows(taken=len(events), sent=events)
    source, operator = Memory(rows, told=len(events)), Memory(stale=True)
    return INITIAL.logging(SOURCE, rows).having(SOURCE, source).having(OPERATOR, operator)


def is_final(c: Configuration) -> bool:
    """Say whether the end has arrived at the writer and all its writes are done."""
    _, operator, writer = c.log
    return END in operator.sent and writer.taken == len(operator.sent) and writer.done == len(writer.sent)


def read(program: Program) -> Rule[Configuration]:
    """The source reads what follows its offset (Algorithm 1); the end is an event like others."""
    outside = (*program.inputs, END)

    def successors(c: Configuration) -> Steps:
        memory = c.memory[SOURCE]
        if memory and memory.rows.taken < len(outside) and _fits(c, SOURCE, program):
            rows = memory.rows
            event = outside[rows.taken]
            after = rows._replace(taken=rows.taken + 1, sent=(*rows.sent, event))
            yield c.having(SOURCE, memory._replace(rows=after))

    return Rule("source reads", successors)


def assign(program: Program) -> Rule[Configuration]:
    """The operator takes an event into the open Input Set, and closes it when it is complete (Algorithm 2)."""

    def successors(c: Configuration) -> Steps:
        for event, memory in _taking(c, OPERATOR, program):
            members = (*memory.rows.opened, event)
            if event != END:
                yield c.having(OPERATOR, _assigned(memory, members, len(members) == program.window))

    return Rule("operator assigns", successors)


def flush(program: Program) -> Rule[Configuration]:
    """The operator takes the end of its stream, and closes what is open."""

    def successors(c: Configuration) -> Steps:
        for event, memory in _taking(c, OPERATOR, program):
            if event == END:
                yield c.having(OPERATOR, _assigned(memory, (*memory.rows.opened, event), True))

    return Rule("operator flushes", successors)


def generate(program: Program) -> Rule[Configuration]:
    """The operator draws a value and makes the Output Set of the Input Set that is complete (Algorithm 3)."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[OPERATOR]
        if memory and memory.due:
            for rows in output_sets(program, memory.rows, memory.due):
                yield c.having(OPERATOR, memory._replace(rows=rows, due=()))

    return Rule("operator generates", successors)


def take_write(program: Program) -> Rule[Configuration]:
    """The writer takes an event and makes a write action of it (Algorithm 3); of the end it makes none."""

    def successors(c: Configuration) -> Steps:
        for event, memory in _taking(c, WRITER, program):
            rows = memory.rows if event == END else memory.rows._replace(sent=(*memory.rows.sent, event))
            yield c.having(WRITER, memory._replace(rows=rows))

    return Rule("writer assigns", successors)


def commit(place: int) -> Rule[Configuration]:
    """A turn commits: acknowledgements, state and Output Sets at once (S1)."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[place]
        if memory and _uncommitted(c, place, memory):
            yield c.logging(place, memory.rows)

    return Rule(f"{NAMES[place]} commits", successors)


def wake(place: int) -> Rule[Configuration]:
    """The receiver is told of events that are logged, and not before (S2)."""

    def successors(c: Configuration) -> Steps:
        yield from telling(c, place, c.log[place].sent)

    return Rule(f"{NAMES[place]} wakes", successors)


def write() -> Rule[Configuration]:
    """The first write action that is logged and undone is performed, and its answer arrives (Algorithm 5; W1, W2)."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[WRITER]
        if memory and _pending(c, memory):
            yield performed(c, c.log[WRITER].done + 1).having(WRITER, memory._replace(answered=True))

    return Rule("writer writes", successors)


def lose_answer() -> Rule[Configuration]:
    """A write is performed and its answer does not arrive."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[WRITER]
        if memory and _pending(c, memory):
            yield performed(c, c.log[WRITER].done + 1)

    return Rule("writer loses an answer", successors)


def mark_done() -> Rule[Configuration]:
    """The write action that was answered is set to done (Algorithm 5)."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[WRITER]
        if memory and memory.answered:
            done = c.log[WRITER].done + 1
            after = memory._replace(rows=memory.rows._replace(done=done), answered=False)
            yield c.logging(WRITER, c.log[WRITER]._replace(done=done)).having(WRITER, after)

    return Rule("writer marks done", successors)


def crash(place: int) -> Rule[Configuration]:
    """An operator loses all that is not in the log."""

    def successors(c: Configuration) -> Steps:
        if c.memory[place]:
            yield c.having(place, None)

    return Rule(f"{NAMES[place]} crashes", successors)


def crash_committing(place: int) -> Rule[Configuration]:
    """An operator dies while its commit is on its way to the log."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[place]
        if memory and not c.late and _uncommitted(c, place, memory):
            yield c.having(place, None)._replace(late=Late(place, rows=memory.rows))

    return Rule(f"{NAMES[place]} crashes while it commits", successors)


def crash_writing() -> Rule[Configuration]:
    """The writer dies while a write is on its way to the sink."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[WRITER]
        if memory and not c.late and _pending(c, memory):
            yield c.having(WRITER, None)._replace(late=Late(WRITER, write=c.log[WRITER].done + 1))

    return Rule("writer crashes while it writes", successors)


def arrive() -> Rule[Configuration]:
    """What a dead operator had sent off arrives; a commit that a recovery has fenced off is not there any more."""

    def successors(c: Configuration) -> Steps:
        if c.late and c.late.rows:
            yield c.logging(c.late.place, c.late.rows)._replace(late=None)
        elif c.late:
            yield performed(c, c.late.write)._replace(late=None)

    return Rule("what was late arrives", successors)


def recover(place: int) -> Rule[Configuration]:
    """An operator starts from the log (Algorithms 6, 8 and 9), and makes its receiver look there (Algorithm 7)."""

    def successors(c: Configuration) -> Steps:
        if c.memory[place] is None:
            yield recovered(fenced(c, place), place)

    return Rule(f"{NAMES[place]} recovers", successors)


def output_sets(program: Program, rows: Rows, due: tuple[Body, ...]) -> Iterator[Rows]:
    """Yield the rows after each Output Set that an Input Set can have: one per value drawn, in the state too."""
    members = [event for event in due if event != END]
    tail = (END,) if END in due else ()
    if not members:
        yield rows._replace(sent=(*rows.sent, *tail))
        return
    for drawn in program.draws:
        state = rows.state + "".join(members) + drawn
        yield rows._replace(state=state, sent=(*rows.sent, state, *tail))


def telling(c: Configuration, place: int, events: tuple[Body, ...]) -> Steps:
    """Tell the receiver of the events of a port that it was not told of; yield nothing if there are none."""
    memory = c.memory[place]
    if memory and memory.told < len(events):
        after = c.having(place, memory._replace(told=len(events)))
        receiver = c.memory[place + 1]
        yield after.having(place + 1, _hearing(receiver, memory.told, events)) if receiver else after


def _hearing(receiver: Memory, before: int, events: tuple[Body, ...]) -> Memory:
    """Append to the channel what continues it; where events are missing in between, let it look into the log."""
    known = receiver.rows.taken + len(receiver.inbox)
    if receiver.stale or before > known:
        return receiver._replace(inbox=(), stale=True)
    return receiver._replace(inbox=receiver.inbox + events[known:])


def performed(c: Configuration, number: int) -> Configuration:
    """Perform a write action as it is logged (W1); a sink that has its marker leaves it at that."""
    if number <= c.sink.marker:
        return c
    return c._replace(sink=Sink((*c.sink.held, c.log[WRITER].sent[number - 1]), number))


def fenced(c: Configuration, place: int) -> Configuration:
    """Refuse what an operator may have sent to the log before now (F1); a write to the sink cannot be called back."""
    return c._replace(late=None) if c.late and c.late.rows and c.late.place == place else c


def recovered(c: Configuration, place: int) -> Configuration:
    """Give an operator the memory that its log describes, and drop the cache of its receiver's channel."""
    rows = c.log[place]
    if place == WRITER:
        return c.having(place, Memory(rows, stale=True))
    after = c.having(place, Memory(rows, stale=place != SOURCE, told=len(rows.sent)))
    receiver = c.memory[place + 1]
    return after.having(place + 1, receiver._replace(inbox=(), stale=True)) if receiver else after


def _taking(c: Configuration, place: int, program: Program) -> Iterator[tuple[Body, Memory]]:
    """Yield the event that an operator can take now, if any, and its memory with the event acknowledged."""
    memory = c.memory[place]
    if memory and not memory.due and _fits(c, place, program):
        rows = memory.rows
        waiting = c.log[place - 1].sent[rows.taken :] if memory.stale else memory.inbox
        if waiting:
            after = rows._replace(taken=rows.taken + 1)
            yield waiting[0], memory._replace(rows=after, inbox=waiting[1:], stale=False)


def _fits(c: Configuration, place: int, program: Program) -> bool:
    """Say whether the turn may take one more event."""
    memory = c.memory[place]
    return memory is not None and memory.rows.taken - c.log[place].taken < program.turn


def _assigned(memory: Memory, members: tuple[Body, ...], complete: bool) -> Memory:
    opened, due = ((), members) if complete else (members, ())
    return memory._replace(rows=memory.rows._replace(opened=opened), due=due)


def _uncommitted(c: Configuration, place: int, memory: Memory) -> bool:
    return memory.rows != c.log[place] and not memory.due


def _pending(c: Configuration, memory: Memory) -> bool:
    return not memory.answered and c.log[WRITER].done < len(c.log[WRITER].sent)
