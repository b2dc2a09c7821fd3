"""What a turn costs the log does not grow with keys that stand still."""

import os

import pyarrow as pa
import pytest

from clew import Count, Session
from clew.ids import Port
from clew.pipeline.operators import WindowLogic
from clew.pipeline.windows import Window
from clew.protocol.log.alg2_update import update
from clew.protocol.log.alg3_generate import Output, Productions, generate
from clew.protocol.log.context import Arrival, Context, fresh
from clew.protocol.step import Step
from clew.store.statements import statements_of

MANY = 1_000_000 if os.environ.get("CLEW_SOAK") else 100_000


def turn(context: Context, logic: WindowLogic, keys: range, time: int) -> tuple[Context, Step]:
    """Take one event with a record of each of these keys."""
    table = pa.table({"k": list(keys), "t": [time] * len(keys)})
    number = context.latest.get("in", 0) + 1
    done = update(context, logic, [Arrival("in", number, len(keys), 1, logic.facts(table))])
    sets = tuple(closed.number for closed in done.closed)
    made = [Productions(sets, {"out": Output((0,) * len(sets), (), ())})] if sets else []
    after, step = generate(done, made)
    after.settle()
    return after, step


def cost(step: Step) -> tuple[int, int]:
    """Return how many statements a step makes, and how many characters they carry."""
    made = [statement for write in step.writes for statement in statements_of(write)]
    return len(made), sum(len(str(value)) for statement in made for value in statement.values)


@pytest.mark.parametrize("window", [Count(3, by="k"), Session(10_000, on="t", by="k")], ids=["count", "session"])
def test_the_log_pays_for_keys_that_occur(window: Window) -> None:
    costs = []
    for standing in (100, MANY):
        logic = WindowLogic({"f": window}, ("in",))
        context = fresh("OP", {"in": Port("S", "out")}, ("out",), logic.initial())
        context, first = turn(context, logic, range(standing), 0)
        assert cost(first)[0] > standing
        statements = characters = 0
        for at in range(20):
            context, step = turn(context, logic, range(5), 1 + at)
            statements, characters = statements + cost(step)[0], characters + cost(step)[1]
        costs.append((statements, characters))
    (few, short), (many, long) = costs
    assert many == few
    # Numbers of Input Sets have more digits.
    assert long < 1.5 * short
