"""The examples on real Spark, with a group that fails in the middle: the same in the sinks as without."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clew.faultpoint import arm
from clew.pipeline.load import load
from clew.run import program_of, run, verify
from tests.docs.pages import ROOT, blocks
from tests.examples.expected import EXAMPLES, Example
from tests.soak import every
from tests.spark.test_programs import forget
from tests.terminal import Terminal, terminal


@contextmanager
def prepared(example: Example, directory: Path) -> Iterator[Terminal]:
    """Make an example's data, and start its server where it has one, as its README says."""
    shutil.copytree(ROOT / "examples" / example.name, directory)
    (commands,) = blocks(directory / "README.md", "sh")
    with terminal(directory) as shell:
        for command in commands.splitlines():
            if command.startswith("python"):
                assert shell.run(command)[0] == 0
        yield shell


# One in `make test`: the others show the same of other operators.
@pytest.mark.parametrize("example", every(len(EXAMPLES), EXAMPLES), ids=lambda example: example.name)
def test_an_example_survives_a_failure_on_spark(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    directory = tmp_path / example.name
    path = str(directory / "pipeline.py")
    with prepared(example, directory) as shell:
        port = shell.environment["BANK_PORT"]
        monkeypatch.setenv("BANK_PORT", port)
        monkeypatch.chdir(directory)
        (point,) = re.findall(r"CLEW_FAULTS=(\S+)", (directory / "README.md").read_text())
        (fault,) = arm(f"{point}:raise")
        try:
            pipeline = load(path)
            # The workers of the shared session do not have this process's environment: code alone travels.
            run(pipeline, spark=spark, program=program_of(path, None) if example.name != "payments" else None)
        finally:
            arm()
        assert fault.fired
        assert verify(pipeline).word == "explained"
        assert example.held(directory, port) == example.expected(directory)
    forget(directory)
