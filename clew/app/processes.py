"""How the processes of a run are started: the words of their command lines."""

import sys
from collections.abc import Sequence
from pathlib import Path

from clew.app.flags import spark_words
from clew.app.settings import Settings
from clew.pipeline.graph import Graph
from clew.place import Log
from clew.run import SparkOptions
from clew.supervisor.processes import Commands

#: Seconds after which an engine service that nobody calls ends by itself: its groups call it all the time.
_IDLE = 60
#: Settings of the groups themselves; what else is set they find where this command has found it.
_PASSED = (
    "restart_delay", "longest_restart_delay", "give_up_after", "poll", "lease", "attempts", "turn_seconds",
    "turn_timeout", "max_turn_events", "capacity_events", "capacity_bytes",
)  # fmt: skip


def commands_of(
    file: str, graph: Graph, place: Log, settings: Settings, options: SparkOptions, accept: Sequence[str]
) -> Commands:
    """Return how the groups of a pipeline, a spare one and their engine service are started."""
    directory = _directory(place)
    engine, served = ["--engine", "inline"], None
    if settings.engine == "spark":
        address, token = directory / "engine.address", directory / "engine.token"
        engine = ["--engine", f"file:{address}", "--token-file", str(token)]
        own = ["--address-file", str(address), "--token-file", str(token), "--idle", str(_IDLE)]
        own += ["--workers-log", str(directory.parent / "workers.log")]
        served = [sys.executable, "-m", "clew.app.main", "engine", file, *own, *_bodies(place), *spark_words(options)]
    passed = [word for name in _PASSED for word in ("--set", f"{name}={getattr(settings, name)}")]
    passed += [word for operator in accept for word in ("--accept", operator)]
    passed += ["--py-files", ",".join(settings.py_files)] if settings.py_files else []
    common = ["--pipeline", file, "--log", place.url, *_bodies(place), *engine, *passed, "--output", str(directory)]

    def group(name: str | None, dead: str | None) -> list[str]:
        which = ["--spare"] if name is None else [name]
        gone = [] if dead is None else ["--dead", dead]
        return [sys.executable, "-m", "clew.app.group", *which, *gone, *common]

    return Commands(group, served, directory)


def _directory(place: Log) -> Path:
    beside = place.beside("groups")
    assert beside is not None
    return beside.resolve()


def _bodies(place: Log) -> list[str]:
    return [] if place.bodies is None else ["--bodies", place.bodies]
