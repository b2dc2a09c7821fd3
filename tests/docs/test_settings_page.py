"""docs/settings.md: its table is the model's, and its files are read as it says."""

import tomllib
from pathlib import Path

import pytest

from clew.app.main import app
from clew.app.settings import Settings, in_force, variable
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "settings.md"
FLAGS = ("log", "bodies", "engine", "master", "conf", "packages", "jars", "py_files", "gc_every", "metrics", "groups")


def row(name: str) -> str:
    field = Settings.model_fields[name]
    flag = f"`--{name.replace('_', '-')}`" if name in FLAGS else f"`--set {name}=`"
    default = "none" if field.default in (None, [], {}) else f"`{field.default}`"
    return f"| `{name}` | `{variable(name)}` | {flag} | {default} | {field.description} |"


def test_the_table_is_the_models() -> None:
    expected = [row(name) for name in Settings.model_fields]
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert found == expected, "\n" + "\n".join(expected)


def test_the_flags_exist() -> None:
    import typer

    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    known = {option for parameter in run.params for option in parameter.opts}
    named = {f"--{name.replace('_', '-')}" for name in FLAGS if name in Settings.model_fields}
    assert {*named, "--set"} <= known


def test_its_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, project = blocks(PAGE, "toml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clew.toml").write_text(own)
    assert set(tomllib.loads(own)) <= set(in_force().model_fields_set)
    (tmp_path / "clew.toml").unlink()
    (tmp_path / "pyproject.toml").write_text(project)
    assert in_force().model_fields_set
