"""Every command line in the files of docs/deploy is one that its program has."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException

from clew.app.main import app
from clew.app.settings import Settings, variable
from tests.deploy.files import DEPLOY, PIPELINE, SCRIPTS, UNITS, clew_words, environment, submitted, unit
from tests.docs.test_blocks import parse

#: Options that `spark-submit --help` lists; asking it would start a JVM.
OF_SPARK = {
    "--master", "--deploy-mode", "--name", "--jars", "--packages", "--py-files", "--files", "--archives", "--conf",
    "--properties-file", "--driver-memory", "--executor-memory", "--total-executor-cores", "--executor-cores",
    "--num-executors", "--principal", "--keytab", "--queue",
}  # fmt: skip
LINES = [pytest.param(words, id=f"{where}-{number}") for number, (where, words) in enumerate(clew_words())]


@pytest.mark.parametrize("words", LINES)
def test_clew_takes_the_command_line(words: list[str]) -> None:
    parse(typer.main.get_command(app), words)


def test_a_flag_that_there_is_not_is_found() -> None:
    words = next(words for where, words in clew_words() if where == "container group")
    with pytest.raises(TyperException, match=r"No such option.*--tls-root"):
        parse(typer.main.get_command(app), [*words, "--tls-root=/secrets/tls/ca.crt"])


def test_engines_that_others_reach_have_tls_and_groups_know_their_root() -> None:
    for where, words in clew_words():
        line = " ".join(words)
        assert ("--tls-cert" in line and "--tls-key" in line) == (words[0] == "engine"), where
        assert ("--tls-ca" in line and "--token-file" in line) == (words[0] == "group"), where


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_whole(path: Path) -> None:
    found = unit(path)
    assert set(found) == {"DEFAULT", "Unit", "Service", "Install"}
    service = found["Service"]
    assert int(service["TimeoutStopSec"]) > 30
    assert service["EnvironmentFile"].startswith("/etc/clew/%")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    assert verified(tmp_path, lambda text: text) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_a_wrong_unit(tmp_path: Path) -> None:
    _, said = verified(tmp_path, lambda text: text.replace("KillMode=", "KilMode="))
    assert "Unknown key" in said


def verified(place: Path, changed: Any) -> tuple[int, str]:
    """Have systemd read the units; the program that they start need not be there."""
    for path in UNITS:
        (place / path.name).write_text(changed(path.read_text().replace("/opt/clew/bin/clew", "/bin/true")))
    command = ["systemd-analyze", "verify", "--man=no", *(str(place / path.name) for path in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_the_variables_of_units_are_settings_or_those_of_the_pipeline() -> None:
    given = environment(DEPLOY / "systemd" / "sales.env")
    known = {variable(name) for name in Settings.model_fields}
    assert {name for name in given if name.startswith("CLEW_")} <= known
    own = {name for name in given if not name.startswith("CLEW_")}
    assert own == {"ENGINE_URL", "ORDERS", "SHOP"}
    assert all(f'"{name}"' in PIPELINE.read_text() for name in ("ORDERS", "SHOP"))
    assert any("${ENGINE_URL}" in path.read_text() for path in UNITS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_spark_submit_takes_its_options(path: Path) -> None:
    own, file, words = submitted(path)
    flags, values = own[::2], own[1::2]
    assert set(flags) <= OF_SPARK
    assert not any(value.startswith("--") for value in values)
    assert all("=" in value for flag, value in zip(flags, values) if flag == "--conf")
    assert (DEPLOY / "spark" / file).exists()
    assert words[0] == "engine"
    # Spark's options are given to spark-submit: Clew refuses them there.
    assert not {"--master", "--conf", "--packages", "--jars"} & set(words)


def test_the_scripts_are_shell() -> None:
    for path in SCRIPTS:
        subprocess.run(["sh", "-n", str(path)], check=True, timeout=30)
