"""Algorithm 6: recovery of a Source operator."""

from collections.abc import Callable
from itertools import takewhile

import pytest

from clew.protocol.log.alg1_source import (
    complete_action,
    complete_next,
    drop_effect,
    emit,
    end_stream,
    parts_of,
    start_action,
)
from clew.protocol.log.alg6_source import Resume, recover_source
from clew.protocol.log.context import Context, fresh, restore
from clew.protocol.step import Step
from tests.protocol.scene import Log, batch, bodies, unchanged


class Source:
    """A source that logs what it does, and can lose all but its log."""

    def __init__(self, replayable: bool) -> None:
        self.log = Log("OP.out > OP2.in")
        self.replayable = replayable
        self.context = fresh("OP", {}, ("out",), {})

    def perform(self, decided: tuple[Context, Step] | Step) -> "Source":
        if isinstance(decided, Step):
            step = decided
        else:
            self.context, step = decided
        self.log.commit("OP", step)
        return self

    def start(self) -> "Source":
        return self.perform(start_action(self.context, "Cx", "A"))

    def store(self) -> "Source":
        return self.perform(complete_action(self.context, "Cx", bodies("effect")))

    def emit(self, text: str, offset: int, last: bool = False) -> "Source":
        return self.perform(emit(self.context, "Cx", batch(text), {"row": offset}, last, not self.replayable))

    def drop(self) -> "Source":
        return self.perform(drop_effect(self.context, "Cx"))

    def crash(self) -> Resume:
        """Forget everything, and decide from the log where to go on."""
        store = self.log.store
        self.log.incarnations["OP"] = store.take_over("OP")
        self.context = restore(fresh("OP", {}, ("out",), {}), store.state("OP"))
        action = store.last_read_action("OP")
        rows = (store.read_event("OP", part, action.action) for part in parts_of("Cx")) if action else iter(())
        events = list(takewhile(bool, rows))
        with unchanged(self.context, action, events):
            return recover_source(self.context, action, events, self.replayable)


@pytest.mark.parametrize("replayable", [True, False])
def test_a_source_that_never_read_starts(replayable: bool) -> None:
    """Algorithm 6, Step 2: there is no last read action."""
    assert Source(replayable).crash() == Resume("start")


def test_an_effect_that_was_not_stored_is_observed_again() -> None:
    """Algorithm 6, Step 4.a."""
    assert Source(replayable=False).start().crash() == Resume("observe")


def test_an_action_observed_again_keeps_its_id() -> None:
    """Algorithm 6, Step 4.a: "replay r; resume execution from Step 2.a", not from Step 1."""
    source = Source(replayable=False).start()
    source.crash()
    source.store()
    assert source.log.rows("READ_ACTION", "action_id", "status") == [(1, "complete")]


def test_a_stored_effect_is_gone_through_from_its_start() -> None:
    """Algorithm 6, Step 3.b: complete, undone, and no offset yet."""
    assert Source(replayable=False).start().store().crash() == Resume("stored", None, (bodies("effect"),))


def test_a_stored_effect_is_gone_through_from_the_last_offset() -> None:
    """Algorithm 6, Step 3.b: "from the last offset of the effect of r stored in STATE"."""
    source = Source(replayable=False).start().store().emit("a1", 1).emit("a2", 2)
    assert source.crash() == Resume("stored", {"row": 2}, (bodies("effect"),))


def test_a_replayable_action_is_replayed_from_its_start() -> None:
    """Algorithm 6, Step 4.b, before the first offset."""
    assert Source(replayable=True).start().crash() == Resume("replay", None)


def test_a_replayable_action_is_replayed_from_the_last_offset() -> None:
    """Algorithm 6, Step 4.b."""
    assert Source(replayable=True).start().emit("a1", 1).crash() == Resume("replay", {"row": 1})


def test_an_effect_that_is_used_up_is_discarded() -> None:
    """Algorithm 6, Step 3.a: "discard store for the effect of r", if Step 2.d had not."""
    assert Source(replayable=False).start().store().emit("a1", 1, last=True).crash().at == "drop"


def test_nothing_is_left_to_do_once_it_is_discarded() -> None:
    """Algorithm 6, Step 3.a."""
    assert Source(replayable=False).start().store().emit("a1", 1, last=True).drop().crash() == Resume("finished")


def test_a_complete_replayable_action_needs_nothing() -> None:
    """Algorithm 6, Step 3: "No other recovery action is needed if r is replayable"."""
    assert Source(replayable=True).start().emit("a1", 1, last=True).crash() == Resume("finished")


@pytest.mark.parametrize("replayable", [True, False])
def test_event_ids_go_on_after_the_restart(replayable: bool) -> None:
    """Algorithm 6, Step 2: "Get last global state from STATE", and with it the counters (C2)."""
    source = Source(replayable).start()
    if not replayable:
        source.store()
    source.emit("a1", 1).crash()
    source.emit("a2", 2, last=True)
    assert source.log.rows("EVENT_LOG", "event_id", rec_op="OP2") == [(1,), (2,), (3,)]
    assert source.log.rows("EVENT_DATA", "event_id", "body", send_p="out") == [(1, b"a1"), (2, b"a2")]


@pytest.mark.parametrize("replayable", [True, False])
def test_a_crash_after_any_step_gives_the_same_events(replayable: bool) -> None:
    """Algorithm 6 as a whole: wherever the source stops, it goes on exactly there."""
    texts = ["a1", "a2", "a3"]

    def go_on(source: Source, resume: Resume) -> Callable[[], object] | None:
        """Return the next step of Algorithm 1."""
        row = resume.offset["row"] if resume.offset else 0
        match resume.at:
            case "start":
                return source.start
            case "observe":
                return source.store
            case "stored" | "replay":
                return lambda: source.emit(texts[row], row + 1, last=row + 1 == len(texts))
            case "drop":
                return source.drop
        return None

    source = Source(replayable)
    while (step := go_on(source, source.crash())) is not None:
        step()
    assert source.log.rows("EVENT_DATA", "body") == [(text.encode(),) for text in texts]
    assert source.log.rows("READ_ACTION", "status") == [("complete",)]
    assert source.context.finished


def test_the_offset_handed_out_is_the_sources_own() -> None:
    """Algorithm 6, Step 2: a source that moves its offset does not move the restored state."""
    source = Source(replayable=True).start().emit("a1", 1)
    resume = source.crash()
    with unchanged(source.context):
        resume.offset["row"] = 99


class Following(Source):
    """A source whose read actions follow each other; the effect of each is stored in two runs of bodies."""

    def __init__(self) -> None:
        super().__init__(replayable=False)

    def store(self) -> "Following":
        seen = (self.context.state.get("seen") or 0) + 1
        self.perform(complete_next(self.context, "Cx", (bodies(f"e{seen}"), bodies("rest")), seen))
        return self

    def emit(self, text: str, offset: int, last: bool = False) -> "Following":
        self.perform(emit(self.context, "Cx", batch(text), {"row": offset}, last, 2, ends=False))
        return self

    def drop(self) -> "Following":
        self.perform(drop_effect(self.context, "Cx", 2))
        return self

    def end(self, incomplete: bool = False) -> "Following":
        self.perform(end_stream(self.context, "Cx", incomplete))
        return self


def following(source: Source) -> Following:
    assert isinstance(source, Following)
    return source


def test_between_two_actions_a_source_looks_for_the_next() -> None:
    """Algorithm 6, Step 3.a, where another action may follow: resume at Step 1, and know what was seen."""
    source = following(Following().start()).store().emit("a1", 1, last=True)
    assert source.crash() == Resume("drop", effects=(bodies("e1"), bodies("rest")))
    assert source.drop().crash() == Resume("start")
    assert source.context.state == {"seen": 1}


def test_the_next_action_begins_at_its_own_start() -> None:
    """Algorithm 6, Step 3.b: the offset of one action is not that of the next."""
    source = following(Following().start()).store().emit("a1", 1, last=True).drop()
    source = following(source.start()).store()
    assert source.crash() == Resume("stored", None, (bodies("e2"), bodies("rest")))


def test_a_stream_that_ended_has_nothing_left_to_do() -> None:
    """Algorithm 6, Step 3: also where it ended before anything was read, or while an action had nothing to read."""
    assert Following().end().crash() == Resume("finished")
    assert following(Following().start()).end(incomplete=True).crash() == Resume("finished")
    read = following(Following().start()).store().emit("a1", 1, last=True).drop()
    assert read.end().crash() == Resume("finished")


def test_a_crash_after_any_step_of_many_actions_gives_the_same_events() -> None:
    """Algorithm 6 as a whole, where three actions of two events each follow each other."""

    def go_on(source: Following, resume: Resume) -> Callable[[], object] | None:
        seen = source.context.state.get("seen") or 0
        row = resume.offset["row"] if resume.offset else 0
        match resume.at:
            case "start":
                return source.start if seen < 3 else source.end
            case "observe":
                return source.store
            case "stored":
                return lambda: source.emit(f"a{seen}{row}", row + 1, last=row == 1)
            case "drop":
                return source.drop
        return None

    source = Following()
    while (step := go_on(source, source.crash())) is not None:
        step()
    texts = [f"a{action}{row}" for action in (1, 2, 3) for row in (0, 1)]
    assert source.log.rows("EVENT_DATA", "event_id", "body") == [(n, t.encode()) for n, t in enumerate(texts, 1)]
    assert source.log.rows("READ_ACTION", "action_id", "status") == [(n, "complete") for n in (1, 2, 3)]
    assert source.context.finished
    assert source.context.sent == {"out": 7}
