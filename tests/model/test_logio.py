"""Clew's protocol in small hides its failures from the sink, and does so only with every one of its rules."""

from collections.abc import Callable, Iterator

import pytest

from clew.model.definitions import Rule, Rules, is_execution, is_partial_order
from clew.model.explore import check_transparency, first_dead_end
from clew.model.logio import (
    FAILURES,
    FAULTS,
    INITIAL,
    OPERATOR,
    SINK,
    SOURCE,
    WRITER,
    Configuration,
    Memory,
    Program,
    Rows,
    Sink,
    fed,
    is_final,
    output_sets,
    recovered,
    rules_of,
    telling,
    transparency,
)

Steps = Iterator[Configuration]

COIN = ("0", "1")
EACH = Program()
EACH_DRAWN = Program(draws=COIN)
WINDOWS = Program(("a", "b", "c"), window=2)
WINDOWS_DRAWN = Program(("a", "b", "c"), window=2, draws=COIN)
ZOMBIES = Program(draws=COIN, turn=2, zombies=True)


def failing(rules: Rules[Configuration], *names: str) -> Rules[Configuration]:
    """Return rules by which only some of the operators fail; a counterexample to these is one to all."""
    others = [rule for rule in FAILURES & rules.names if rule.split()[0] not in names]
    return rules.without(others)


@pytest.mark.parametrize("program", [EACH, WINDOWS_DRAWN], ids=["each event", "windows of two, drawn"])
def test_failures_cannot_be_noticed_at_the_sink(program: Program) -> None:
    """Definition 5.10: whatever the sink holds, with any number of crashes, it holds without them too."""
    verdict = check_transparency(transparency(rules_of(program)))
    assert verdict.counterexample is None
    assert verdict.configurations > 10_000


def test_zombies_cannot_be_noticed_at_the_sink() -> None:
    """Definition 5.10, with commits and writes that arrive after the death of who sent them, and turns of two."""
    rules = failing(rules_of(ZOMBIES), "operator", "writer", "what")
    verdict = check_transparency(transparency(rules, fed(ZOMBIES)))
    assert verdict.counterexample is None
    assert verdict.configurations > 5_000


@pytest.mark.parametrize("program", [EACH, WINDOWS], ids=["each event", "windows of two"])
def test_whatever_failed_the_chain_can_be_completed(program: Program) -> None:
    """As Theorem 6.10: once failures stop, there is always a way to the end."""
    rules = rules_of(program)
    assert first_dead_end(rules, [INITIAL], is_final, FAULTS & rules.names) is None


def test_without_failures_the_sink_holds_every_result_in_order() -> None:
    """What is transparent is not empty."""
    assert finals(rules_of(EACH), INITIAL) == {("a", "ab")}
    assert finals(rules_of(WINDOWS), INITIAL) == {("ab", "abc")}
    drawn = finals(rules_of(EACH_DRAWN), fed(EACH_DRAWN))
    assert drawn == {("a0", "a0b0"), ("a0", "a0b1"), ("a1", "a1b0"), ("a1", "a1b1")}


def finals(rules: Rules[Configuration], initial: Configuration) -> set[tuple[str, ...]]:
    """What the sink holds at the end of all executions without failures."""
    rules = rules.without(FAILURES & rules.names)
    found: set[Configuration] = set()
    left = {initial}
    while left:
        found |= left
        left = {step.after for c in left for step in rules.steps(c)} - found
    return {c.sink.held for c in found if is_final(c)}


def test_the_sink_grows_at_its_end() -> None:
    """Definition 5.3."""
    assert is_partial_order(SINK.at_most, [(), ("a",), ("b",), ("a", "b"), ("b", "a")])


# Broken rules. Each is a mistake that a log protocol can make.


def sends_before_the_commit() -> Rule[Configuration]:
    """Without S2: the receiver is told of what the turn has made, logged or not."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[OPERATOR]
        if memory:
            yield from telling(c, OPERATOR, memory.rows.sent)

    return Rule("operator wakes", successors)


def draws_again_on_recovery() -> Rule[Configuration]:
    """The first Output Set is generated once more, though it may have been seen already."""

    def successors(c: Configuration) -> Steps:
        rows = c.log[OPERATOR]
        if c.memory[OPERATOR] is None:
            drawn = output_sets(EACH_DRAWN, Rows(rows.taken), ("a",)) if len(rows.sent) == 1 else [rows]
            for again in drawn:
                yield recovered(c.logging(OPERATOR, again), OPERATOR)

    return Rule("operator recovers", successors)


def writes_without_a_marker() -> Rule[Configuration]:
    """The sink takes what it is given, as often as it is given."""

    def successors(c: Configuration) -> Steps:
        memory, rows = c.memory[WRITER], c.log[WRITER]
        if memory and not memory.answered and rows.done < len(rows.sent):
            held = (*c.sink.held, rows.sent[rows.done])
            yield c._replace(sink=Sink(held)).having(WRITER, memory._replace(answered=True))

    return Rule("writer writes", successors)


def commits_in_two(place: int, name: str, *first: str) -> Rule[Configuration]:
    """Without S1: some columns are committed before the others."""

    def successors(c: Configuration) -> Steps:
        memory = c.memory[place]
        if memory and memory.rows != c.log[place] and not memory.due:
            half = c.log[place]._replace(**{column: getattr(memory.rows, column) for column in first})
            yield c.logging(place, memory.rows if half == c.log[place] else half)

    return Rule(name, successors)


def skips_an_input() -> Rule[Configuration]:
    return commits_in_two(SOURCE, "source commits", "taken")


def reads_an_input_twice() -> Rule[Configuration]:
    return commits_in_two(SOURCE, "source commits", "sent")


def acknowledges_before_the_outputs() -> Rule[Configuration]:
    return commits_in_two(OPERATOR, "operator commits", "taken", "opened", "state")


def logs_outputs_before_it_acknowledges() -> Rule[Configuration]:
    return commits_in_two(OPERATOR, "operator commits", "sent")


def stores_no_state() -> Rule[Configuration]:
    return commits_in_two(OPERATOR, "operator commits", "taken", "opened", "sent")


def recovers(place: int, name: str, wrong: Callable[[Configuration], Configuration]) -> Rule[Configuration]:
    """A recovery that does something more, or less."""

    def successors(c: Configuration) -> Steps:
        if c.memory[place] is None:
            yield wrong(c)

    return Rule(name, successors)


def forgets_the_open_input_set() -> Rule[Configuration]:
    """Without Algorithm 9."""

    def wrong(c: Configuration) -> Configuration:
        return recovered(c.logging(OPERATOR, c.log[OPERATOR]._replace(opened=())), OPERATOR)

    return recovers(OPERATOR, "operator recovers", wrong)


def forgets_pending_writes() -> Rule[Configuration]:
    """Without Algorithm 8: what was logged to be written counts as written."""

    def wrong(c: Configuration) -> Configuration:
        rows = c.log[WRITER]
        return recovered(c.logging(WRITER, rows._replace(done=len(rows.sent))), WRITER)

    return recovers(WRITER, "writer recovers", wrong)


def lets_the_channel_have_gaps() -> Rule[Configuration]:
    """The channel believes in the events it is told of, though those before them may be missing."""

    def successors(c: Configuration) -> Steps:
        for after in telling(c, SOURCE, c.log[SOURCE].sent):
            before, receiver = c.memory[SOURCE], c.memory[OPERATOR]
            if before and receiver:
                heard = receiver.inbox + c.log[SOURCE].sent[before.told :]
                yield after.having(OPERATOR, receiver._replace(inbox=heard, stale=False))

    return Rule("source wakes", successors)


def fences_nobody() -> Rule[Configuration]:
    """Without F1: a commit of the dead is accepted after the takeover."""
    return recovers(OPERATOR, "operator recovers", lambda c: recovered(c, OPERATOR))


def asks_and_then_writes() -> Rule[Configuration]:
    """A sink that can be asked what it has, and does not refuse by itself what it has: a late write is applied."""

    def successors(c: Configuration) -> Steps:
        if c.late and c.late.write:
            held = (*c.sink.held, c.log[WRITER].sent[c.late.write - 1])
            yield c._replace(sink=c.sink._replace(held=held), late=None)

    return Rule("what was late arrives", successors)


BROKEN = [
    ("operator", EACH_DRAWN, sends_before_the_commit),
    ("operator", EACH_DRAWN, draws_again_on_recovery),
    ("writer", EACH, writes_without_a_marker),
    ("source", EACH, skips_an_input),
    ("source", EACH, reads_an_input_twice),
    ("operator", EACH, acknowledges_before_the_outputs),
    ("operator", EACH, logs_outputs_before_it_acknowledges),
    ("operator", EACH, stores_no_state),
    ("operator", WINDOWS, forgets_the_open_input_set),
    ("writer", EACH, forgets_pending_writes),
    ("source", EACH, lets_the_channel_have_gaps),
    ("operator", ZOMBIES, fences_nobody),
    ("writer", ZOMBIES, asks_and_then_writes),
]


@pytest.mark.parametrize(("where", "program", "mistake"), BROKEN, ids=[mistake.__name__ for *_, mistake in BROKEN])
def test_a_mistake_is_refuted(where: str, program: Program, mistake: Callable[[], Rule[Configuration]]) -> None:
    """The sink holds at the end of the counterexample what it never holds without failures."""
    rules = failing(rules_of(program).swapped(mistake()), where, "what")
    initial = INITIAL if where == "source" else fed(program)
    found = check_transparency(transparency(rules, initial)).counterexample
    assert found is not None
    assert is_execution(found.execution.configurations, rules)
    assert FAULTS & set(found.execution.rules)
    held = found.execution.last.sink.held
    assert not any(SINK.at_most(held, final) for final in finals(rules, initial))


def test_the_shortest_way_to_a_write_twice_is_a_lost_answer() -> None:
    found = check_transparency(transparency(rules_of(EACH).swapped(writes_without_a_marker()))).counterexample
    assert found is not None
    assert found.seen == ((), ("a",), ("a", "a"))
    assert found.execution.rules[-2:] == ("writer loses an answer", "writer writes")


def test_sending_before_the_commit_harms_only_what_can_be_drawn_otherwise() -> None:
    """S2 is needed for functions that are not deterministic; the others make the same events again."""
    rules = failing(rules_of(EACH).swapped(sends_before_the_commit()), "operator", "writer")
    assert check_transparency(transparency(rules, fed(EACH))).holds


def test_without_resending_nothing_wrong_is_seen_and_something_is_missing() -> None:
    """Without Algorithm 7: a safe protocol that may never come to its end."""

    def wrong(c: Configuration) -> Configuration:
        rows = c.log[OPERATOR]
        return c.having(OPERATOR, Memory(rows, stale=True, told=len(rows.sent)))

    mistake = recovers(OPERATOR, "operator recovers", wrong)
    rules = failing(rules_of(EACH).swapped(mistake), "operator")
    assert check_transparency(transparency(rules, fed(EACH))).holds
    stuck = first_dead_end(rules, [fed(EACH)], is_final, FAULTS & rules.names)
    assert stuck is not None
    assert stuck.rules[-3:] == ("operator generates", "operator commits", "operator crashes")
