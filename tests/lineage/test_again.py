"""Whatever kind an operator is, its Output Sets of the past come out the same when they are run again."""

from pathlib import Path

import pytest

from clew.retrace import diff
from tests.model.pipelines import PIPELINES
from tests.model.runs import finished


@pytest.mark.parametrize("name", PIPELINES)
def test_what_was_made_is_made_again(tmp_path: Path, name: str) -> None:
    made = finished(PIPELINES[name](tmp_path), tmp_path)
    graph = made.pipeline.graph()
    for spec in graph.operators.values():
        if spec.functions and spec.settings.deterministic:
            found = list(diff(graph, spec.name, log=made.url, bodies=str(made.bodies)))
            assert found or name == "empty"
            assert [one for one in found if not one.same] == [], spec.name
