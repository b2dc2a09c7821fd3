"""Commands on a log in a server of Clew's own."""

import json
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.errors import SetupFailed
from clew.place import Log, masked
from clew.store.embedded_postgres import stop
from tests.app.pipelines import call, finish, kept, start, write, write_numbers

OTHER = """
import pyarrow as pa
from clew import Pipeline, generator

pipeline = Pipeline("other")
pipeline.source("few", generator(lambda index: pa.table({"n": [index]}), 2))
"""


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A directory that another user may pass through, as the server does where the tests run as root."""
    path = Path(tempfile.mkdtemp(prefix="clew-test-"))
    path.chmod(0o755)
    yield path
    assert stop(path / "pg")
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def url(base: Path) -> str:
    return f"embedded-postgres:{base / 'pg'}"


def postmaster(base: Path) -> Path:
    return base / "pg" / "postgres.d" / "data" / "postmaster.pid"


@pytest.fixture(scope="module")
def numbers(base: Path, url: str) -> str:
    """A pipeline that was run there."""
    file = write_numbers(base)
    assert call("run", file, "--log", url, "--engine", "inline", "--fresh").exit_code == 0
    return file


def test_doctor_knows_what_the_first_run_would_start(base: Path) -> None:
    url = f"embedded-postgres:{base / 'none'}"
    told = json.loads(call("doctor", "--log", url, "--json").stdout)
    found = {line["what"]: line["found"] for line in told["lines"]}
    assert found["PostgreSQL"].endswith(f"for the first run to make {url} with")
    assert call("status", write_numbers(base), "--log", url).exit_code == 1
    assert not (base / "none").exists()


def test_a_run_resumes_though_it_was_killed_and_its_server_too(base: Path, url: str) -> None:
    own = base / "killed"
    own.mkdir()
    words = ("run", write_numbers(own), "--log", url, "--engine", "inline")
    stop(base / "pg")
    assert finish(start(*words, "--fresh", CLEW_FAULTS="after-commit@doubled#2"))[0] == -signal.SIGKILL
    # It has outlived the run. A machine that goes down takes it along.
    os.kill(int(postmaster(base).read_text().split("\n")[0]), signal.SIGKILL)
    code, _, said = finish(start(*words))
    assert code == 0, said
    assert "resuming run" in said
    assert kept(own) == [2 * number for number in range(20)]
    # The run was the last one to use it, and has ended well.
    assert not postmaster(base).exists()
    assert (base / "pg" / "numbers" / "run.log").exists()


def test_what_was_run_can_be_asked_for(numbers: str, url: str) -> None:
    file = numbers
    assert f"log {url}" in (told := call("status", file, "--log", url).stdout)
    assert "finished" in told
    assert "source.out#3" in call("trace", "back", file, "doubled#3", "--log", url).stdout
    # Its sink is one of a test, which the judge cannot read; but the log is gone through.
    assert "gone through: " in call("verify", file, "--log", url).stdout
    assert f"from {url}" in call("gc", file, "--log", url).stdout
    told = call("run", file, "--log", url, "--engine", "inline")
    assert told.exit_code == 3
    assert url in told.stderr
    assert call("doctor", "--log", url).stdout.count("on") > 1


def test_who_only_looks_leaves_no_server(base: Path, url: str, numbers: str) -> None:
    stop(base / "pg")
    code, told, _ = finish(start("status", numbers, "--log", url, "--json"))
    assert code == 0
    assert json.loads(told)["log"] == url
    assert not postmaster(base).exists()


def test_fresh_removes_what_is_of_the_pipeline_alone(base: Path, url: str, numbers: str) -> None:
    other = write(base, "other.py", OTHER)
    assert call("run", other, "--log", url, "--engine", "inline").exit_code == 0
    bodies = base / "pg" / "other" / "bodies"
    bodies.mkdir(exist_ok=True)
    (bodies / "one").touch()
    assert call("run", numbers, "--log", url, "--engine", "inline", "--fresh").exit_code == 0
    assert call("run", other, "--log", url, "--engine", "inline").exit_code == 3
    assert (bodies / "one").exists()
    assert call("run", other, "--log", url, "--engine", "inline", "--fresh").exit_code == 0
    assert not (bodies / "one").exists()


def test_a_process_that_spark_will_end_leaves_when_it_has_read(base: Path, url: str, numbers: str) -> None:
    stop(base / "pg")
    place = pickle.loads(pickle.dumps(Log.at(url, "numbers").anywhere()))
    reader = place.visit("numbers")
    assert reader.owner() == "numbers"
    assert postmaster(base).exists()
    reader.close()
    assert not postmaster(base).exists()
    with pytest.raises(SetupFailed, match=f"pipeline none has no log at {url}"):
        place.visit("none")
    assert not postmaster(base).exists()


def test_a_name_is_shown_and_not_the_socket(base: Path, url: str) -> None:
    address = Log.at(url, "numbers").address()
    assert address.startswith("postgresql://")
    assert masked(address) == url


def test_two_slashes_are_those_of_a_url() -> None:
    assert Log.at("embedded-postgres:///var/clew", "shop").home == "/var/clew/shop"
    assert Log.at("embedded-postgres:var", "shop").home == "var/shop"


def test_a_directory_of_something_else_is_refused_by_every_command(base: Path) -> None:
    file = write_numbers(base)
    for command in ("run", "status", "verify", "gc", "doctor"):
        told = call(command, *([file] if command != "doctor" else []), "--log", f"embedded-postgres:{base}")
        assert told.exit_code == 1
        assert "and no log of Clew; name a directory that is empty" in told.output
