"""Sessions: a user's own is taken and left alone, Clew's own is rebuilt when its JVM dies, others are refused."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from clew import Pipeline, generator
from clew.app.logs import heard
from clew.errors import SetupFailed
from clew.run import run
from clew.spark.jvm import JvmOutput, cause, cure, waited_for
from clew.spark.session import _impatient
from tests.spark.outside import multiset, rows, said, script

EVENTS = 12


def tiny() -> Pipeline:
    p = Pipeline("tiny")
    p.source("source", generator(lambda i: pa.table({"n": [i]}), 1))
    return p


def settings(session: SparkSession) -> dict[str, str]:
    return {**dict(session.sparkContext.getConf().getAll()), **session.conf.getAll}


def test_a_session_is_used_and_neither_changed_nor_stopped(spark: SparkSession) -> None:
    run(tiny(), spark=spark, recovery="none")
    before = settings(spark)
    run(tiny(), spark=spark)
    after = settings(spark)
    assert {key: after.get(key) for key in before | after if after.get(key) != before.get(key)} == {}
    assert spark.range(3).count() == 3


class ConnectSession:
    """What a Spark Connect session is to whoever asks it for a context."""

    @property
    def sparkContext(self) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})


def test_a_connect_session_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SetupFailed, match="Spark Connect session, which has no RDDs; give it a classic SparkSession"):
        run(tiny(), spark=ConnectSession())  # type: ignore[arg-type]


def test_clew_does_not_take_over_a_session_that_it_was_not_given(spark: SparkSession) -> None:
    with pytest.raises(SetupFailed, match=r"already running in this process.*run\(spark=session\)"):
        run(tiny())
    assert spark.range(3).count() == 3


def test_a_thing_without_a_context_is_refused() -> None:
    with pytest.raises(SetupFailed):
        run(tiny(), spark=SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("home", ["", "/nowhere"])
def test_without_java_there_is_one_clear_sentence(tmp_path: Path, home: str) -> None:
    environment = {"PATH": str(tmp_path), "JAVA_HOME": home}
    found = said(script("no_java.py", **environment))
    where = "JAVA_HOME is /nowhere, where there is no bin/java" if home else "there is no java on the PATH"
    cure = "install Java 17 or later, or set JAVA_HOME to it"
    assert found == {"kind": "SetupFailed", "message": f"Spark needs Java, and {where}; {cure}"}


def test_a_java_that_starts_no_spark_is_told_with_a_cure(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    found = said(script("no_java.py", JAVA_HOME=str(tmp_path)))
    assert found["kind"] == "SetupFailed"
    assert re.match(r"no Spark session could be started on local\[\d+,4\]: it gave no reason; what ", found["message"])
    assert found["message"].endswith("; check that `java -version` says 17 or later")


MAVEN = """:: loading settings :: url = jar:file:ivysettings.xml
Exception in thread "main" java.lang.IllegalArgumentException: requirement failed: Provided Maven Coordinates must be so
\tat scala.Predef$.require(Predef.scala:337)
"""
HEAP = "Invalid maximum heap size: -Xmxlots\nError: Could not create the Java Virtual Machine.\n"
GIVEN_UP = """15:03:06 spark ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up.
An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
\tat org.apache.spark
"""


@pytest.mark.parametrize(
    ("text", "why", "cured"),
    [
        (MAVEN, "requirement failed: Provided Maven Coordinates must be so", "give --packages as GROUP:NAME:VERSION"),
        (HEAP, "Invalid maximum heap size: -Xmxlots", "give spark.driver.memory a size such as 2g"),
        (GIVEN_UP, "Cannot call methods on a stopped SparkContext.", "start the master, or name another one"),
        ("odd\n", "odd", "mend what it says"),
    ],
    ids=["packages", "memory", "master", "other"],
)
def test_why_there_is_no_session_is_told_by_one_line_of_javas_with_a_cure_that_fits(
    text: str, why: str, cured: str
) -> None:
    assert cause(text) == why
    assert cure(text).startswith(cured)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--conf", "spark.driver.memory=lots"), "on local[2]: Invalid maximum heap size: -Xmxlots; what Java printed"),
        (("--master", "foo"), "on foo: Master must either be yarn or start with spark, k8s, or local; what Java"),
    ],
    ids=["memory", "master"],
)
def test_a_session_that_cannot_start_prints_no_java(tmp_path: Path, words: tuple[str, str], said: str) -> None:
    file = tmp_path / "tiny.py"
    file.write_text(TINY)
    command = [sys.executable, "-m", "clew.app.main", "run", str(file), "--master", "local[2]", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1
    *announced, error = done.stderr.splitlines()
    assert error.startswith(f"error: no Spark session could be started {said}")
    assert [line for line in announced if not re.match(r"\d\d:\d\d:\d\d (new run|starting|source) ", line)] == []
    (kept,) = (tmp_path / ".clew" / "stacks").iterdir()
    assert kept.name in error
    assert "Java Virtual Machine" in kept.read_text() or "\tat org.apache.spark" in kept.read_text()


TINY = """
import pyarrow as pa
from clew import Pipeline, generator

p = Pipeline("tiny")
p.source("source", generator(lambda i: pa.table({"n": [i]}), 1))
"""


def test_a_master_that_is_not_there_is_said_to_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.spark.session._PATIENCE", 0.01)
    told: list[str] = []
    heard_one = threading.Event()

    def hear(text: str) -> None:
        told.append(text)
        heard_one.set()

    with heard(hear), _impatient("spark://127.0.0.1:1"):
        assert heard_one.wait(30)
    assert told == [
        "Spark's master spark://127.0.0.1:1 cannot be reached (Connection refused); Spark tries again for a minute or "
        "two"
    ]
    with heard(hear), _impatient("local[2]"):
        time.sleep(0.1)
    assert len(told) == 1


def test_a_cluster_that_listens_is_waited_for_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        assert waited_for(master) == f"Spark's master {master} has not answered yet, and is waited for"
    assert waited_for("yarn") == "Spark on yarn has not answered yet, and is waited for"


def test_what_a_jvm_prints_is_kept_while_a_session_starts_and_passed_on_afterwards(
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = JvmOutput()
    kept: list[str] = []

    def start_in_vain() -> None:
        with output.keeping(kept):
            os.write(output.into, b"in vain\n")
            raise ValueError("no session")

    with pytest.raises(ValueError, match="no session"):
        start_in_vain()
    os.write(output.into, b"later\n")
    os.close(output.into)
    output._thread.join(10)
    assert kept == ["in vain\n"]
    assert capfd.readouterr().err == "later\n"


def lasting() -> Any:
    return multiset([{"n": n, "arrow": n, "twice": 2 * n} for n in range(EVENTS)])


def test_clews_own_session_is_rebuilt_when_its_jvm_is_killed_and_the_run_ends_right(tmp_path: Path) -> None:
    found = said(script("own_session.py", str(tmp_path)))
    assert found["killed"]
    assert found["sessions"] == 2
    # Turns were tried again on the new session; no operator had to start again.
    assert set(found["restarts"].values()) == {0}
    assert multiset(rows(tmp_path / "out")) == lasting()


def test_a_users_session_loses_workers_keeps_its_settings_and_its_death_stops_the_run(tmp_path: Path) -> None:
    found = said(script("supplied.py", str(tmp_path)))
    # Every fault fired: this session tries no task again, so the runtime did.
    assert {path.name for path in tmp_path.glob("died-in-*")} == {
        "died-in-source", "died-in-arrow", "died-in-udf", "died-in-sink",
    }  # fmt: skip
    assert multiset([{"n": row["n"], "twice": row["twice"]} for row in rows(tmp_path / "out")]) == multiset(
        [{"n": n, "twice": 2 * n} for n in range(4)]
    )
    assert [row["at"].hour for row in rows(tmp_path / "out")] == [0, 1, 2, 3]
    assert (found["changed"], found["alive"]) == (False, True)
    assert found["stopped"] == (
        "the Spark session that was given to Clew has died; "
        "make a new session and run again: the run resumes where it was"
    )
    # A new run, in the same process, went on with the log.
    assert multiset(rows(tmp_path / "killed" / "out")) == lasting()
