"""The general operator: control follows the user's own assign and ready."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from clew import Each, Event, InputSet, Operator
from clew.ids import EventId, InputSetId, Port
from clew.pipeline.operators import LateRecords, OperatorLogic
from clew.pipeline.windows import Header, Key, State
from clew.protocol.log.context import InputSet as Opening
from clew.protocol.log.context import Memory, Opened
from clew.protocol.log.layers import Layers
from tests.pipeline.test_windows import Header as Seen


class Pairs(Operator):
    """Two events of one parity make an Input Set."""

    def initial(self) -> State:
        return {"even": 0, "odd": 0}

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        key = "odd" if event.number % 2 else "even"
        state[key] += 1
        return (key,)

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        return [key for key in opened if state[key] == 2]


class Two(Pairs):
    """The same, for two functions."""

    functions = ("generate", "other")

    def facts(self, table: pa.Table) -> Any:
        return table.num_rows

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        return [("generate", event.facts), ("other", event.facts)]

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        return [pair for pair in opened if pair[0] == "other"]

    def flush(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        return ()


def memory(logic: OperatorLogic) -> Memory:
    return Memory(logic.initial(), Layers(), [])


def opened(*labels: Any) -> Opened:
    made = Opened()
    for number, label in enumerate(labels, 1):
        made[label] = Opening(InputSetId(number), label)
    return made


def test_control_follows_assign_and_ready() -> None:
    logic = OperatorLogic(Pairs())
    known = memory(logic)
    assert [logic.assign(Seen(number=n), known) for n in (1, 2, 3)] == [
        [("generate", "odd")],
        [("generate", "even")],
        [("generate", "odd")],
    ]
    labels = [("generate", "odd"), ("generate", "even")]
    assert logic.ready(known, opened(*labels)) == [("generate", "odd")]
    assert logic.end_turn(known, opened(*labels)) == ()
    assert logic.flush(known, opened(*labels)) == labels


def test_several_functions_are_told_apart_by_pairs() -> None:
    logic = OperatorLogic(Two())
    known = memory(logic)
    assert logic.assign(Seen(facts=7), known) == [("generate", 7), ("other", 7)]
    assert logic.ready(known, opened(("generate", 7), ("other", 7))) == [("other", 7)]
    assert logic.flush(known, opened(("generate", 7))) == []


def test_facts_are_asked_for_only_where_they_are_defined() -> None:
    assert (OperatorLogic(Pairs()).needs_facts, OperatorLogic(Two()).needs_facts) == (False, True)
    assert OperatorLogic(Two()).facts(pa.table({"a": [1, 2]})) == 2


def test_what_is_not_defined_says_so() -> None:
    bare = Operator()
    with pytest.raises(TypeError, match="Operator must define assign"):
        bare.assign(Seen(), {})
    with pytest.raises(TypeError, match="Operator must define ready"):
        bare.ready({}, ())
    with pytest.raises(TypeError, match="Operator must define generate"):
        bare.generate(InputSet(1, "a", (), {}), _Nothing())


class _Nothing:
    """A context of which nothing is asked."""

    state: Mapping[str, Any] = {}

    def read(self, connection: str, action: str) -> pa.Table:
        raise AssertionError

    def write(self, connection: str, table: pa.Table) -> None:
        raise AssertionError


def test_late_records_are_told_by_the_window_that_has_them() -> None:
    with pytest.raises(TypeError, match="told by the window that they are late for"):
        LateRecords(Each()).assign(Seen(), memory(OperatorLogic(Pairs())))
    with pytest.raises(TypeError, match=r"Each\(\) has no late records"):
        Each().pick_late(pa.table({"n": [1]}), None)


def test_an_input_sets_table_holds_the_records_of_one_port_in_order() -> None:
    def event(number: int, port: str) -> Event:
        return Event(EventId(Port("a", "out"), number), port, pa.table({"n": [number]}))

    schemas = {port: pa.schema({"n": pa.int64()}) for port in ("in", "other", "silent")}
    input_set = InputSet(1, "k", (event(1, "in"), event(2, "other"), event(3, "in")), schemas)
    assert input_set.table().column("n").to_pylist() == [1, 3]
    assert input_set.table("other").column("n").to_pylist() == [2]
    assert input_set.table("silent").equals(schemas["silent"].empty_table())
