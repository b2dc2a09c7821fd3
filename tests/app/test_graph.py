"""`clew graph` shows operators and connections, as a tree, as Mermaid and as JSON."""

import json
from pathlib import Path

from tests.app.pipelines import call, write, write_numbers

DIAMOND = """
import pyarrow as pa
from clew import Batch, Pipeline
from clew.connectors.generator import generator

pipeline = Pipeline("diamond")
source = pipeline.source("end", generator(lambda i: pa.table({"n": [i]}), 3))

@pipeline.operator(source, outputs=("odd", "even"), group="together")
def split(table: pa.Table):
    return {"odd": table, "even": table}

@pipeline.operator("split.odd", "split.even", window=Batch(), group="together")
def joined(left: pa.Table, right: pa.Table) -> pa.Table:
    return left
"""


def test_a_tree_has_every_operator_below_its_sender(tmp_path: Path) -> None:
    lines = call("graph", write_numbers(tmp_path)).stdout.splitlines()
    assert lines[0] == "pipeline numbers"
    assert lines[1].startswith("└── source  source  generator make, 20 events")
    assert lines[2].startswith("    └── doubled  operator  Each(), arrow")
    assert lines[3].startswith("        └── doubled_sink  sink  writes kept in out")


def test_an_operator_with_two_inputs_is_drawn_once_and_referred_to(tmp_path: Path) -> None:
    told = call("graph", write(tmp_path, "diamond.py", DIAMOND)).stdout
    assert "odd -> left: joined  operator  Batch(), arrow  group together" in told
    assert "even -> right: joined (see above)" in told


LATE = """
import pyarrow as pa
from clew import Pipeline, Session, generator

pipeline = Pipeline("late")
source = pipeline.source("clicks", generator(lambda i: pa.table({"at": [i]}), 3))
source.window(Session(10, on="at", late="too_late")).aggregate(n="count", name="visits")
"""


def test_late_records_are_said_in_words(tmp_path: Path) -> None:
    told = call("graph", write(tmp_path, "late.py", LATE)).stdout
    assert "by=None), aggregate-late: late records, arrow" in told


def test_mermaid_numbers_its_nodes_for_names_may_be_words_of_its_own(tmp_path: Path) -> None:
    assert call("graph", write(tmp_path, "diamond.py", DIAMOND), "--mermaid").stdout.splitlines() == [
        "flowchart LR",
        '    n0(["end"])',
        '    n1["split"]',
        '    n2["joined"]',
        "    n0 --> n1",
        "    n1 -->|odd to left| n2",
        "    n1 -->|even to right| n2",
    ]


def test_json_has_operators_connections_and_groups(tmp_path: Path) -> None:
    answer = json.loads(call("graph", write(tmp_path, "diamond.py", DIAMOND), "--json").stdout)
    assert [operator["operator"] for operator in answer["operators"]] == ["end", "split", "joined"]
    assert answer["operators"][2]["inputs"] == {"left": "split.odd", "right": "split.even"}
    assert {"from": "split.even", "to": "joined.right"} in answer["connections"]
    assert answer["groups"] == {"end": ["end"], "together": ["split", "joined"]}


def test_a_wrong_pipeline_is_refused_with_its_errors(tmp_path: Path) -> None:
    result = call("graph", write(tmp_path, "a.py", 'from clew import Pipeline\np = Pipeline("none")\n'))
    assert result.exit_code == 1
    assert "error: pipeline none cannot run" in result.stderr
