"""Sessions: a user's own is taken and left alone, Clew's own is rebuilt when its JVM dies, others are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from clew import Pipeline, generator
from clew.errors import SetupFailed
from clew.run import run
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
    assert found["message"].startswith("no Spark session could be started on this machine: [JAVA_GATEWAY_EXITED]")
    assert found["message"].endswith("; check that `java -version` says 17 or later, and that the master is right")


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
