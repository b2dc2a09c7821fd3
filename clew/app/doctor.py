"""`clew doctor`."""

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated, Literal

import typer
from rich.text import Text

from clew.app.flags import Conf, Jars, Master, Packages, spark_flags
from clew.app.logs import heard
from clew.app.settings import Settings, in_force
from clew.app.target import Bodies, Json, LogUrl
from clew.app.terminal import FAILED, explained, print_json, results
from clew.errors import ClewError
from clew.run import Health, Installation, examine, masked

#: Syncs per second below which a turn waits for the disk longer than for anything else.
_SLOW = 50
#: Free space below which a log of some size will not fit.
_LITTLE = 1 << 30
_COLOURS = {"ok": "green", "warning": "yellow", "error": "bold red"}


@dataclass(frozen=True)
class Line:
    """One thing that was looked at: what was found, what is expected, what to do."""

    what: str
    state: Literal["ok", "warning", "error"]
    found: str
    expected: str = ""
    cure: str = ""

    def __str__(self) -> str:
        rest = f"; expected {self.expected}; {self.cure}" if self.state != "ok" else ""
        return f"{self.what}: {self.found}{rest}"


def doctor(
    log: LogUrl = None,
    bodies: Bodies = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Start a Spark session too, and ask it and its workers.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    as_json: Json = False,
) -> None:
    """Say whether this machine has what a run needs, and what to do where it has not; exit 1 if a run will not work.

    It changes nothing, and starts no JVM without --spark.
    """
    with explained():
        settings = in_force({"log": log, "bodies": bodies, **spark_flags(master, conf, packages, jars, None)})
        with heard(lambda text: typer.echo(text, err=True)):
            health = examine(settings.log, settings.bodies, settings.spark if spark else None)
        lines = list(diagnosis(settings, health))
        if as_json:
            print_json({"ok": not _fails(lines), "lines": [asdict(line) for line in lines]})
        else:
            _show(lines)
        if _fails(lines):
            raise typer.Exit(FAILED)


def _fails(lines: list[Line]) -> bool:
    return any(line.state == "error" for line in lines)


def _show(lines: list[Line]) -> None:
    console = results()
    for line in lines:
        console.print(Text(f"{line.state:8}", style=_COLOURS[line.state]) + Text(str(line)))


def diagnosis(settings: Settings, health: Health) -> Iterator[Line]:
    """Judge what was found."""
    yield _java(health)
    yield from _packages()
    yield _workers(health)
    yield _scheduler(settings, health)
    if health.spark is not None:
        yield _session(health)
    yield from _disk(health)
    if health.postgres is not None:
        yield from _postgres(settings, health)


def _java(health: Health) -> Line:
    java, expected, cure = health.java, "Java 17 or later", "install Java 17 or later, or set JAVA_HOME to it"
    if java.path is None:
        return Line("Java", "error", java.missing, expected, cure)
    if java.version is None:
        cure = "ask it with `java -version`, or with clew doctor --spark"
        return Line("Java", "warning", f"{java.path}, which does not tell its version", expected, cure)
    return Line("Java", "error" if java.too_old else "ok", f"{java.version} at {java.path}", expected, cure)


#: Packages, and what their versions must begin with.
_NEEDED = {"pyspark": "4.3.", "pyarrow": "", "pandas": "2."}


def _packages() -> Iterator[Line]:
    yield Line("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    for package, begins in _NEEDED.items():
        expected, cure = (
            f"{package} {begins.rstrip('.') or 'of any version'}",
            "install Clew again, with its dependencies",
        )
        try:
            version = installed(package)
        except PackageNotFoundError:
            yield Line(package, "error", "not installed", expected, cure)
        else:
            yield Line(package, "ok" if version.startswith(begins) else "error", version, expected, cure)


def _workers(health: Health) -> Line:
    """Compare what workers run with what the driver runs."""
    expected, cure = "the driver's Python and pyarrow", "install the same on all executors; PYSPARK_PYTHON says where"
    if health.spark is None or isinstance(health.spark, ClewError):
        other = os.environ.get("PYSPARK_PYTHON")
        instead = f" (PYSPARK_PYTHON is {other}, which Clew's own sessions do not use)" if other else ""
        return Line("workers", "ok", f"Clew's own sessions run them with {sys.executable}{instead}")
    own = (platform.python_version_tuple()[:2], installed("pyarrow"))
    found = "; ".join(
        f"Python {py}, pyarrow {arrow}, pandas {pandas} on {host}" for py, arrow, pandas, host in health.spark.workers
    )
    same = all((tuple(py.split(".")[:2]), arrow) == own for py, arrow, _, _ in health.spark.workers)
    return Line("workers", "ok" if same else "error", found, expected, cure)


def _scheduler(settings: Settings, health: Health) -> Line:
    if health.spark is None or isinstance(health.spark, ClewError):
        mode = settings.conf.get("spark.scheduler.mode", "FAIR")
    else:
        mode = health.spark.scheduler
    expected = "FAIR, so that operators share the cores"
    cure = "set spark.scheduler.mode=FAIR; with FIFO a long turn holds up the others"
    return Line("scheduler", "ok" if mode.upper() == "FAIR" else "warning", mode, expected, cure)


def _session(health: Health) -> Line:
    if isinstance(health.spark, ClewError):
        return Line("Spark", "error", str(health.spark), "a session that starts", "mend that, and try again")
    assert health.spark is not None
    found = health.spark
    return Line("Spark", "ok", f"{found.spark} on {found.master}, {found.cores} cores, Java {found.java}")


def _disk(health: Health) -> Iterator[Line]:
    disk = health.disk
    if disk.syncs is None:
        expected = "a directory that can be written"
        cure = "choose another one with --log sqlite:///PATH, or --bodies DIR"
        yield Line("log's disk", "error", f"{disk.directory} cannot be written", expected, cure)
    else:
        least = f"a turn's commit takes {1000 / disk.syncs:.1f} ms or more"
        means = f"{disk.syncs:,.0f} syncs per second in {disk.directory}: {least}"
        expected = f"{_SLOW} or more, since every turn waits for one"
        cure = "put the log on a local SSD, or let turns grow with turn_seconds"
        yield Line("log's disk", "ok" if disk.syncs >= _SLOW else "warning", means, expected, cure)
    expected = "a local file system: on a network, locks and syncs may not hold what they promise"
    cure = "put the log on a local disk, or in PostgreSQL with --log postgresql://..."
    state: Literal["ok", "warning"] = "warning" if disk.on_network else "ok"
    yield Line("file system", state, f"{disk.file_system} at {disk.directory}", expected, cure)
    free = f"{disk.free / (1 << 30):,.1f} GB free at {disk.directory}"
    cure = "free some, or collect what is done with `clew gc`, or beside the run with gc_every"
    yield Line("space", "ok" if disk.free >= _LITTLE else "warning", free, "1 GB or more", cure)


def _postgres(settings: Settings, health: Health) -> Iterator[Line]:
    url = masked(settings.log or "")
    found = health.postgres
    if isinstance(found, ClewError):
        yield Line("PostgreSQL", "error", str(found), f"a server that answers at {url}", "mend that, or the URL")
        return
    assert found is not None
    if isinstance(found, Installation):
        yield Line("PostgreSQL", "ok", f"{found.release} at {found.programs}, for the first run to make {url} with")
        return
    cure = "use a newer server"
    state: Literal["ok", "warning"] = "ok" if found.version >= 140000 else "warning"
    about = f"{found.release} at {url}, answers in {found.round_trip:.1f} ms"
    yield Line("PostgreSQL", state, about, "14 or later, which Clew is tested with", cure)
    cure = "turn it on: without it a power failure may lose what was committed, or the whole database"
    yield Line("fsync", "ok" if found.fsync == "on" else "warning", found.fsync, "on", cure)
    yield Line(
        "synchronous_commit", "ok", f"{found.synchronous_commit}; Clew's transactions set it to on where they must last"
    )
