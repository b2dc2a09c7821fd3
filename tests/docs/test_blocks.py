"""Every code block of every page works: Python runs, commands are those that there are, settings can be read.

The Python blocks of a page are one program: in order, in one namespace, in an empty directory. The pipeline that they
declare is run without Spark, and judged. Where a pipeline needs what is not here the page says so above the block, and
it is declared only.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from clew import Pipeline
from clew.app.main import app
from clew.app.settings import Settings, in_force, variable
from clew.faultpoint import Fault
from clew.run import run, verify
from tests.app.pipelines import call
from tests.deploy.files import require
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, prose

#: Pages whose blocks are all run elsewhere, as they stand: in tests/docs/test_tutorial.py and tests/examples.
ELSEWHERE = {*ROOT.glob("docs/tutorial/[0-9]-*.md"), *ROOT.glob("examples/*/README.md")}
BLOCKS = [block for page in PAGES if page not in ELSEWHERE for block in all_blocks(page)]
LANGUAGES = {"python", "sh", "toml", ""}
#: Whose blocks without a language are checked where: what is printed is compared with what a page shows.
SHOWN = {
    "docs/architecture.md": "tests/docs/test_protocol_page.py",
    "docs/changes.md": "tests/docs/test_changes_page.py",
    "docs/check.md": "tests/docs/test_check_page.py",
    "docs/connect.md": "tests/docs/test_connect_page.py",
    "docs/lineage.md": "tests/docs/test_lineage_page.py",
    "docs/spark.md": "tests/spark/test_options.py",
    "docs/testing.md": "tests/docs/test_testing_page.py",
    "docs/verify.md": "tests/docs/test_verify_page.py",
}
#: The pages with a block that is declared and not run, and what runs it elsewhere.
NOT_RUN = {"docs/sinks.md": "tests/docs/test_sinks_page.py", "docs/sources.md": "tests/spark/test_kafka.py"}
#: Variables that are no settings, and are not Clew's alone.
VARIABLES = {"CLEW_DEBUG", "CLEW_STACKS", "CLEW_SCHEDULES", "SPARK_REMOTE"}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def of(language: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language]


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []
    assert {str(block.page.relative_to(ROOT)) for block in BLOCKS if not block.language} == set(SHOWN)
    assert [path for path in SHOWN.values() if not (ROOT / path).exists()] == []


def test_what_is_not_run_is_listed_here_with_what_runs_it() -> None:
    marked = {str(block.page.relative_to(ROOT)): block.not_run for block in BLOCKS if block.not_run}
    assert set(marked) == set(NOT_RUN), marked
    assert [path for path in NOT_RUN.values() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", dict.fromkeys(block.page for block in BLOCKS if block.language == "python"), ids=str)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = [block for block in all_blocks(page) if block.language == "python"]
    names: dict[str, Any] = {"__name__": "page"}
    for block in python:
        # So that a failure names the line of the page.
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
    pipelines = {name: thing for name, thing in names.items() if isinstance(thing, Pipeline)}
    for name in pipelines:
        Path("page.py").write_text("\n".join(block.text for block in python))
        checked = call("check", f"page.py:{name}")
        assert checked.exit_code == 0, checked.output
    if not any(block.not_run for block in python):
        for pipeline in pipelines.values():
            run_and_judge(pipeline)


def run_and_judge(pipeline: Pipeline) -> None:
    log = f"sqlite:///{pipeline.name}.log.db"
    run(pipeline, log=log, engine="inline")
    verdict = verify(pipeline, log=log, engine="inline")
    assert verdict.word == "explained", verdict.findings
    assert verdict.counts["sink records"] > 0
    for directory in Path("out").glob("*"):
        assert any(directory.glob("*.parquet")), f"{directory} is empty"


@pytest.mark.parametrize("block", of("sh"))
def test_the_commands_of_a_block_are_ones(block: Block) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            require_variable(*words.pop(0).split("=", 1))
        match words:
            case []:
                pass
            case ["clew", *arguments]:
                parse(typer.main.get_command(app), arguments)
            case ["make", target]:
                assert target in TARGETS, line
            case [".", path]:
                assert path == ".venv/bin/activate", line
            case ["cd", path]:
                assert (ROOT / path).is_dir(), line
            case _ if block.page.parent.name == "deploy":
                assert require(words), line
            case _:
                pytest.fail(f"{block}: nobody knows whether this works: {line}")


def require_variable(name: str, value: str) -> None:
    if name == "CLEW_FAULTS":
        for fault in value.split(","):
            Fault.parse(fault)
    else:
        assert name in VARIABLES | {variable(setting) for setting in Settings.model_fields}, name


def parse(command: Any, arguments: list[str], above: Any = None) -> None:
    """Have the real command line read its arguments, without doing anything; raises TyperException where it cannot."""
    context = command.make_context(command.name or "clew", list(arguments), parent=above)
    if isinstance(command, TyperGroup):
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(inner, rest, context)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_commands_and_options_that_the_prose_names_exist(page: Path) -> None:
    for span in re.findall(r"`clew ([a-z][^`]*)`", prose(page)):
        command: Any = typer.main.get_command(app)
        for word in span.split():
            if isinstance(command, TyperGroup):
                assert set(word.split("|")) <= set(command.commands), f"{page.name}: clew {span}"
                command = command.commands[word.split("|")[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in span.split() if word.startswith("--")} <= known, f"{page.name}: clew {span}"


@pytest.mark.parametrize("block", of("toml"))
def test_the_settings_of_a_block_can_be_read(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CLEW_")]:
        monkeypatch.delenv(name)
    (tmp_path / ("pyproject.toml" if "[tool.clew]" in block.text else "clew.toml")).write_text(block.text)
    assert in_force().model_fields_set


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(TyperException, match=r"No such option.*--twice"):
        parse(typer.main.get_command(app), ["run", "first.py", "--twice"])
    with pytest.raises(TyperException, match=r"No such command.*forget"):
        parse(typer.main.get_command(app), ["quarantine", "forget", "first.py"])
