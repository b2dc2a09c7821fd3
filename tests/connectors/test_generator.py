import pickle

import cloudpickle
import pyarrow as pa
import pytest

from clew.connectors import generator
from clew.errors import GraphError, SourceFailed
from clew.pipeline.contracts import Observed, Replayable
from tests.connectors.reading import all_events, plan_of, rows


def numbered(index: int) -> pa.Table:
    return pa.table({"i": [index]})


@pytest.mark.parametrize("turn", [1, 3, 8, 100])
def test_every_index_is_read_once_and_in_order_whatever_the_turn(turn):
    assert [row["i"] for row in rows(all_events(generator(numbered, 20), turn))] == list(range(20))


def test_a_turn_is_cut_into_slices_that_cover_it():
    slices = plan_of(generator(numbered, 1000), None, 100, 30)["slices"]
    assert len(slices) <= 8
    assert [i for first, end in slices for i in range(first, end)] == list(range(100, 130))


def test_the_last_turn_is_known_when_it_is_planned():
    source = generator(numbered, 10)
    assert plan_of(source, None, 5, 4)["last"] is False
    assert plan_of(source, None, 5, 5)["last"] is True
    assert plan_of(generator(numbered, 0), None, None, 5) == {"slices": [], "last": True}


def test_a_generator_that_cannot_be_replayed_is_observed():
    source = generator(numbered, 3, replayable=False)
    assert isinstance(source, Observed)
    assert not isinstance(source, Replayable)
    assert [table["i"][0].as_py() for table in source.observe()] == [0, 1, 2]


def test_what_is_not_a_table_is_refused_with_the_index():
    with pytest.raises(SourceFailed, match=r"\(2\) returned int, expected pyarrow.Table; return a table"):
        all_events(generator(lambda i: numbered(i) if i < 2 else 5, 3), 10)


def test_a_negative_number_of_events_is_refused_where_it_is_declared():
    with pytest.raises(GraphError, match=r"test_generator\.py"):
        generator(numbered, -1)


def test_a_generator_travels():
    assert pickle.loads(pickle.dumps(generator(numbered, 2))).events == 2
    source = pickle.loads(cloudpickle.dumps(generator(lambda i: pa.table({"i": [i]}), 2)))
    assert rows(all_events(source, 2)) == [{"i": 0}, {"i": 1}]
