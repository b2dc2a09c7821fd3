"""Algorithm 6: recovery of a Source operator."""

from collections.abc import Callable

import pytest

from clew.protocol.log.alg1_source import complete_action, drop_effect, emit, start_action
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
        event = store.read_event("OP", action.connection, action.action) if action else None
        with unchanged(self.context, action, event):
            return recover_source(self.context, action, event, self.replayable)


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
    assert Source(replayable=False).start().store().crash() == Resume("stored", None, bodies("effect"))


def test_a_stored_effect_is_gone_through_from_the_last_offset() -> None:
    """Algorithm 6, Step 3.b: "from the last offset of the effect of r stored in STATE"."""
    source = Source(replayable=False).start().store().emit("a1", 1).emit("a2", 2)
    assert source.crash() == Resume("stored", {"row": 2}, bodies("effect"))


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
