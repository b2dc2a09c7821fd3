"""A decision, once made, never changes; and it changes nothing that it was made from."""

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.pipeline.operators import OperatorLogic
from clew.pipeline.timewindows import Tumbling
from clew.pipeline.windows import Batch, Count, Each
from clew.protocol.log.alg2_update import update
from clew.protocol.log.alg3_generate import generate
from clew.protocol.log.context import Arrival, Logic
from tests.protocol.scene import Choosy, Pairs, end, one_each, panes, started, windowed

LOGICS: dict[str, Logic] = {
    "windows": windowed(f=Each(), g=Count(3), h=Batch(), i=Tumbling(2, on="n")),
    "state": OperatorLogic(Pairs()),
    "keys": OperatorLogic(Choosy()),
}
keys = st.lists(st.sampled_from("abc"), max_size=3)


@pytest.mark.parametrize("name", LOGICS)
@settings(max_examples=60)
@given(turns=st.lists(st.lists(st.tuples(keys, keys), max_size=3), max_size=6))
def test_no_later_turn_changes_an_earlier_step_or_context(
    name: str, turns: list[list[tuple[list[str], list[str]]]]
) -> None:
    """Algorithms 2 and 3: a store may take its time with a step, and a turn may be tried again."""
    logic = LOGICS[name]
    context, number = started(logic), 0
    decided: list[tuple[object, object]] = [(context, deepcopy(context))]
    for index, turn in enumerate(turns):
        events = []
        for keys, close in turn:
            number += 1
            facts = {"keys": keys, "close": close, "i": panes(number, size=2)}
            events.append(Arrival("in", number, 1, 1, facts))
        if index == len(turns) - 1:
            events.append(end(number + 1))
        done = update(context, logic, events)
        decided.append((done, deepcopy(done)))
        again = generate(done, one_each(done))
        context, step = generate(done, one_each(done))
        assert (context, step) == again
        decided += [(step, deepcopy(step)), (context, deepcopy(context))]
    for now, then in decided:
        assert now == then
