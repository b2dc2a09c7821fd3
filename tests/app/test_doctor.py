"""`clew doctor` says what it found, what it expects and what to do; it starts no JVM unless it is asked to."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clew.app.doctor import diagnosis, doctor
from clew.app.settings import Settings
from clew.errors import SetupFailed, StoreFailed
from clew.run import Health, examine
from clew.spark.health import SparkHealth
from clew.spark.java import Java, find_java
from clew.store.disk import Disk, file_system
from clew.store.postgres_health import PostgresHealth
from tests.app.pipelines import call

WORKERS = ((".".join(map(str, sys.version_info[:3])), "26.0.1", "2.3.3", "here"),)
FINE = Health(
    Java("/usr/bin/java", version="17.0.1"), Disk("/data", "ext4", 5 << 30, 1000.0),
    PostgresHealth(160002, "on", "on", 0.5), SparkHealth("4.3.0", "17", "local[2]", "FAIR", 2, ()),
)  # fmt: skip


def lines(health: Health, **settings: Any) -> dict[str, tuple[str, str]]:
    return {line.what: (line.state, str(line)) for line in diagnosis(Settings(**settings), health)}


def test_a_machine_where_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = call("doctor", "--json")
    assert told.exit_code == 0
    answer = json.loads(told.stdout)
    assert answer["ok"]
    whats = [line["what"] for line in answer["lines"]]
    assert whats[:5] == ["Java", "Python", "pyspark", "pyarrow", "pandas"]
    assert {"workers", "scheduler", "log's disk", "file system", "space"} <= set(whats)
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    shown = call("doctor").stdout
    assert "syncs per second" in shown
    assert "a turn's commit takes" in shown


def test_it_starts_no_jvm_and_does_not_import_pyspark(tmp_path: Path) -> None:
    code = "import sys\nfrom clew.app.main import app\ntry:\n    app(['doctor'])\nexcept SystemExit:\n    pass\n"
    code += "assert 'pyspark' not in sys.modules and 'psycopg_pool' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("java", "state", "said"),
    [
        (Java(None, missing="there is no java on the PATH"), "error",
         "Java: there is no java on the PATH; expected Java 17 or later; install Java 17 or later, or set JAVA_HOME"),
        (Java("/j", version="1.8.0_1"), "error", "Java: 1.8.0_1 at /j; expected Java 17 or later; "),
        (Java("/j", version="11.0.2"), "error", "Java: 11.0.2 at /j; expected Java 17 or later; "),
        (Java("/j"), "warning", "Java: /j, which does not tell its version; expected Java 17 or later; ask it with"),
        (Java("/j", version="21"), "ok", "Java: 21 at /j"),
    ],
)  # fmt: skip
def test_java(java: Java, state: str, said: str) -> None:
    found = lines(replace(FINE, java=java))["Java"]
    assert found[0] == state
    assert found[1].startswith(said)


def test_java_is_found_without_being_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Java(None, f"JAVA_HOME is {tmp_path}, where there is no bin/java")
    (tmp_path / "bin" / "java").write_text("")
    assert find_java() == Java(str(tmp_path / "bin" / "java"))
    (tmp_path / "release").write_text('OS_NAME="Linux"\nJAVA_VERSION="11.0.2"\n')
    assert find_java().version == "11.0.2"
    told = call("doctor", JAVA_HOME=str(tmp_path))
    assert told.exit_code == 1
    assert "error   Java: 11.0.2" in told.stdout


def test_an_old_java_is_refused_before_a_session_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clew.spark.session import make_session

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("")
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupFailed, match=r"Spark needs Java 17 or later, and .*java is 11.0.2; install Java 17 or"):
        make_session()


def test_disks() -> None:
    slow = lines(replace(FINE, disk=Disk("/d", "nfs4", 5 << 20, 20.0)))
    assert slow["log's disk"] == (
        "warning",
        "log's disk: 20 syncs per second in /d: a turn's commit takes 50.0 ms or more; expected 50 or more, since "
        "every turn waits for one; put the log on a local SSD, or let turns grow with turn_seconds",
    )
    assert slow["file system"][0] == slow["space"][0] == "warning"
    assert "nfs4 at /d; expected a local file system" in slow["file system"][1]
    assert "0.0 GB free at /d; expected 1 GB or more; free some" in slow["space"][1]
    full = lines(replace(FINE, disk=Disk("/d", "ext4", 5 << 30, None)))
    assert full["log's disk"][0] == "error"
    assert "/d cannot be written; expected a directory that can be written; choose another" in full["log's disk"][1]


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data xfs rw 0 0\nc /data/my\\040disk nfs rw 0 0\n")
    for path, kind in (("/home", "ext4"), ("/data/x", "xfs"), ("/database", "ext4"), ("/data/my disk/log", "nfs")):
        assert file_system(Path(path), str(mounts)) == kind
    assert file_system(Path("/x"), str(tmp_path / "none")) == "unknown"


def test_postgres_that_answers(postgres_url: str) -> None:
    found = examine(postgres_url, None, None).postgres
    assert isinstance(found, PostgresHealth)
    assert found.version >= 140000
    told = lines(replace(FINE, postgres=found), log=postgres_url)
    assert told["PostgreSQL"][0] == "ok"
    assert "synchronous_commit" in told


def test_postgres_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = call("doctor", "--log", "postgresql://me:pw@127.0.0.1:1/none")
    assert told.exit_code == 1
    assert "error   PostgreSQL: " in told.stdout
    assert "expected a server that answers at postgresql://me:***@127.0.0.1:1/none" in told.stdout
    assert "pw" not in told.output.replace("postgresql", "")


def test_a_server_that_may_lose_what_it_committed_is_warned_of() -> None:
    told = lines(replace(FINE, postgres=PostgresHealth(120004, "off", "off", 0.5)), log="postgresql://h/d")
    assert told["PostgreSQL"] == (
        "warning",
        "PostgreSQL: 12.4 at postgresql://h/d, answers in 0.5 ms; expected 14 or later, which Clew is tested with; use "
        "a newer server",
    )
    assert told["fsync"] == (
        "warning",
        "fsync: off; expected on; turn it on: without it a power failure may lose what was committed, or the whole "
        "database",
    )
    assert told["synchronous_commit"][0] == "ok"


def test_the_scheduler() -> None:
    assert lines(replace(FINE, spark=None))["scheduler"][0] == "ok"
    told = lines(replace(FINE, spark=None), conf={"spark.scheduler.mode": "FIFO"})["scheduler"]
    assert told == (
        "warning",
        "scheduler: FIFO; expected FAIR, so that operators share the cores; set spark.scheduler.mode=FAIR; with FIFO a "
        "long turn holds up the others",
    )


def test_workers_of_another_version_and_a_session_that_does_not_start() -> None:
    health = SparkHealth("4.3.0", "17", "spark://h", "FIFO", 2, (("3.9.1", "1.0", "2.0", "far"),))
    told = lines(replace(FINE, spark=health))
    assert told["workers"][0] == "error"
    assert (
        "Python 3.9.1, pyarrow 1.0, pandas 2.0 on far; expected the driver's Python and pyarrow" in told["workers"][1]
    )
    assert told["scheduler"][0] == "warning"
    told = lines(replace(FINE, spark=SetupFailed("no Spark", "mend it")))
    assert told["Spark"] == (
        "error",
        "Spark: no Spark; mend it; expected a session that starts; mend that, and try again",
    )
    told = lines(replace(FINE, postgres=StoreFailed("gone")), log="postgresql://h/d")
    assert told["PostgreSQL"][0] == "error"


def test_packages_that_are_missing_or_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(package: str) -> str:
        if package == "pandas":
            raise LookupError
        return {"pyspark": "3.5.0", "pyarrow": "26.0.1"}[package]

    module = sys.modules[doctor.__module__]
    monkeypatch.setattr(module, "installed", other)
    monkeypatch.setattr(module, "PackageNotFoundError", LookupError)
    told = lines(FINE)
    assert told["pyspark"][1] == "pyspark: 3.5.0; expected pyspark 4.3; install Clew again, with its dependencies"
    assert told["pandas"][1].startswith("pandas: not installed; expected pandas 2; ")


def test_with_spark_it_asks_a_session_and_its_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clew.app.main", "doctor", "--spark", "--master", "local[2]", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = {line["what"]: line["found"] for line in json.loads(done.stdout.splitlines()[-1])["lines"]}
    assert found["Spark"].startswith("4.3.0 on local[2], 2 cores, Java 17")
    assert found["scheduler"] == "FAIR"
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}." in found["workers"]
