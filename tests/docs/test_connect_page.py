"""docs/connect.md: what it says that is refused is, in the words that it shows; no server is needed for that."""

import re
from pathlib import Path

import pytest

from clew.errors import SetupFailed
from clew.spark.options import SparkOptions
from clew.spark.session import open_session, require_classic
from tests.app.pipelines import call
from tests.docs.pages import ROOT, blocks
from tests.spark.test_sessions import ConnectSession

PAGE = ROOT / "docs" / "connect.md"
SHOWN = blocks(PAGE, "")
WAYS: dict[str, tuple[SparkOptions, dict[str, str]]] = {
    "the master sc://h:1": (SparkOptions(master="sc://h:1"), {}),
    "spark.remote": (SparkOptions(conf={"spark.remote": "sc://h:1"}), {}),
    "spark.api.mode": (SparkOptions(conf={"spark.api.mode": "connect"}), {"SPARK_API_MODE": "classic"}),
    "the variable SPARK_REMOTE": (SparkOptions(), {"SPARK_REMOTE": "sc://h:1"}),
    "the variable SPARK_CONNECT_MODE_ENABLED": (SparkOptions(), {"SPARK_CONNECT_MODE_ENABLED": "1"}),
    "the variable SPARK_API_MODE": (SparkOptions(), {"SPARK_API_MODE": "Connect"}),
    "the variable SPARK_CONNECT_MODE": (SparkOptions(), {"SPARK_CONNECT_MODE": "1"}),
}


def test_the_command_of_the_page_ends_as_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "first.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    done = call("run", "first.py", SPARK_REMOTE="sc://spark.example.com:15002")
    assert done.exit_code == 1
    assert done.stderr.endswith(SHOWN[0])


@pytest.mark.parametrize("asks", WAYS)
def test_whatever_asks_for_connect_is_refused_by_its_name(asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, environment = WAYS[asks]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SetupFailed, match=f"^{re.escape(asks)} asks for Spark Connect, and Clew needs a classic"):
        open_session(options)


def test_a_classic_mode_is_not_refused() -> None:
    SparkOptions().refuse_connect({})
    SparkOptions(conf={"spark.api.mode": "classic"}).refuse_connect({"SPARK_API_MODE": "connect"})
    SparkOptions().refuse_connect({"SPARK_API_MODE": "classic", "SPARK_CONNECT_MODE": "1"})


def test_a_connect_session_is_refused_as_the_page_shows() -> None:
    with pytest.raises(SetupFailed) as refused:
        require_classic(ConnectSession())
    assert f"{refused.value}\n" == SHOWN[1]
