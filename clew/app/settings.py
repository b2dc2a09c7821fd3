"""Settings: what holds, and where it was said.

A flag wins over the environment, which wins over the file, which wins over the default. The file is `clew.toml` where
the command is called, or the table `[tool.clew]` of `pyproject.toml` there.
"""

import difflib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from clew.errors import ClewError
from clew.pipeline.graph import Capacity, Graph
from clew.pipeline.graph import Settings as Declared
from clew.run import LEASE, Policy, SparkOptions, masked

EngineName = Literal["spark", "inline"]
GroupsAs = Literal["threads", "processes"]
Level = Literal["debug", "info", "warning", "error"]
_PREFIX = "CLEW_"
_OPERATOR = Declared()
_POLICY = Policy()
#: As Spark itself tells what must not be seen in a list of settings.
_SECRET = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)


@dataclass(eq=False)
class SettingRefused(ClewError):
    """A setting that does not exist, or a value that it cannot have."""

    place: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.cure}"


@dataclass(eq=False)
class SettingsRefused(ClewError):
    """All settings that do not exist, or have values that they cannot have."""

    errors: tuple[SettingRefused, ...]

    def __str__(self) -> str:
        lines = "".join(f"\n  {error}" for error in self.errors)
        return f"{len(self.errors)} settings cannot be used:{lines}"


class Settings(BaseSettings):
    """What can be set once, for all commands that are called in a directory."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    log: str | None = Field(
        None, description="the log: sqlite:///PATH, postgresql://USER@HOST/DATABASE or embedded-postgres:DIR"
    )
    bodies: str | None = Field(None, description="the directory of large event bodies, which all executors must see")
    engine: EngineName = Field("spark", description="spark, or inline: in one process, without Spark, for tests")
    master: str | None = Field(None, description="Spark's master, as in local[4]; by default all cores of this machine")
    conf: dict[str, str] = Field({}, description="settings of Clew's own Spark session, by their names in Spark")
    packages: list[str] = Field([], description="Maven coordinates of jars that Spark fetches, as GROUP:NAME:VERSION")
    jars: list[str] = Field([], description="jars for the driver and the executors")
    py_files: list[str] = Field(
        [], description="Python code that the pipeline file and the executors import: .py, .zip or .egg"
    )
    gc_every: Annotated[float, Field(ge=0.1)] | None = Field(
        None, description="seconds between two collections beside a run; without it there are none"
    )
    restart_delay: float = Field(
        _POLICY.first_delay, ge=0, description="seconds before a failed group is restarted; doubled for each failure"
    )
    longest_restart_delay: float = Field(_POLICY.longest_delay, ge=0, description="the most that it is doubled to")
    give_up_after: int = Field(
        _POLICY.give_up_after, ge=1, description="failures in a row, with nothing committed, that stop the run"
    )
    poll: float = Field(
        _POLICY.poll, gt=0, description="seconds after which an idle group looks into the log by itself"
    )
    groups: GroupsAs = Field(
        "threads", description="threads of one process, or processes: one for each group, on a log in PostgreSQL"
    )
    lease: float = Field(
        LEASE,
        ge=0.5,
        le=60.0,
        description="seconds of silence after which the process of a run, or of a group, is replaced",
    )
    log_level: Level = Field("info", description="what goes into run.log: debug, info, warning or error")
    metrics: str | None = Field(None, description="HOST:PORT where a run's figures are served for Prometheus")
    openlineage: str | None = Field(
        None, description="where OpenLineage events of a run go: console, file:PATH or an http(s) URL"
    )
    openlineage_namespace: str | None = Field(
        None, description="the namespace of the jobs in these events; by default the pipeline's name"
    )
    attempts: int = Field(
        _OPERATOR.attempts, ge=1, description="how often a function is tried on an Input Set, where it declares nothing"
    )
    turn_seconds: float = Field(
        _OPERATOR.turn_seconds, gt=0, description="how long a turn is to take, where an operator declares nothing"
    )
    turn_timeout: float = Field(
        _OPERATOR.turn_timeout, gt=0, description="seconds after which a turn is cut off, where it declares nothing"
    )
    max_turn_events: int = Field(
        _OPERATOR.max_turn_events, ge=1, description="the most events of a turn, where an operator declares nothing"
    )
    capacity_events: int = Field(
        _OPERATOR.capacity.events, ge=1, description="events that may wait on a connection, where it declares nothing"
    )
    capacity_bytes: int = Field(
        _OPERATOR.capacity.bytes, ge=1, description="bytes that may wait on a connection, where it declares nothing"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any) -> Any:
        """Refuse what pydantic would take for the numbers 1 and 0: no setting is a matter of yes or no."""
        if isinstance(value, bool):
            raise PydanticCustomError("truth", "Input should be neither true nor false")
        return value

    @field_validator("metrics")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and address(value) is None:
            raise PydanticCustomError("address", "Input should be HOST:PORT, as in 127.0.0.1:9108")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # All levels come in as arguments: only then is it known which one a value is from.
        return (init_settings,)

    @property
    def policy(self) -> Policy:
        """How failed groups are restarted, and how often the log is collected."""
        return Policy(self.restart_delay, self.longest_restart_delay, self.give_up_after, self.poll, self.gc_every)

    @property
    def spark(self) -> SparkOptions:
        """What Clew's own Spark session is made with."""
        return SparkOptions(self.master, dict(self.conf), tuple(self.packages), tuple(self.jars), tuple(self.py_files))

    def applied_to(self, graph: Graph) -> Graph:
        """Return the graph with these settings where its operators declare nothing of their own."""
        operators = {
            name: replace(spec, settings=self._operator(spec.settings)) for name, spec in graph.operators.items()
        }
        return replace(graph, operators=operators)

    def _operator(self, declared: Declared) -> Declared:
        own = {name: getattr(self, name) for name in ("attempts", "turn_seconds", "turn_timeout", "max_turn_events")}
        own["capacity"] = Capacity(self.capacity_events, self.capacity_bytes)
        left = {name: value for name, value in own.items() if getattr(declared, name) == getattr(_OPERATOR, name)}
        return replace(declared, **left)


def address(text: str) -> tuple[str, int] | None:
    """Read HOST:PORT, if it is that; a host is named on purpose, for whoever reaches it can read what is served."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Found:
    """The settings that hold, and where each was said: by its name, for `conf` by `conf.KEY`."""

    settings: Settings
    origins: Mapping[str, str]


def find(flags: Mapping[str, Any] | None = None) -> Found:
    """Put flags, environment and file together; flags that were not given are None or empty."""
    given = {name: value for name, value in (flags or {}).items() if value not in (None, [], {}, ())}
    levels = [("flag", given), ("environment", _environment()), _file()]
    settings = _checked(levels)
    origins: dict[str, str] = {}
    for place, level in reversed(levels):
        origins |= {name: _origin(place, name) for name in _names(level)}
    return Found(settings, origins)


def in_force(flags: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings that hold."""
    return find(flags).settings


def _names(level: Mapping[str, Any]) -> list[str]:
    plain = [name for name in level if name != "conf"]
    return plain + [f"conf.{key}" for key in level.get("conf", {})]


def _origin(place: str, name: str) -> str:
    if place == "environment":
        return f"environment, {variable(name.partition('.')[0])}"
    return place


def variable(name: str) -> str:
    """Return the name of the variable that sets it in the environment."""
    return _PREFIX + name.upper()


def _checked(levels: Sequence[tuple[str, Mapping[str, Any]]]) -> Settings:
    """Check each level by itself, so that a complaint can say where to mend it; then put them together."""
    together: dict[str, Any] = {}
    refused: list[SettingRefused] = []
    for place, level in levels:
        try:
            Settings(**level)
        except ValidationError as error:
            refused += [_refused(place, one) for one in error.errors()]
    _tell(refused)
    for _, level in reversed(levels):
        conf = {**together.get("conf", {}), **level.get("conf", {})}
        together = {**together, **level, **({"conf": conf} if conf else {})}
    return Settings(**together)


def _tell(refused: Sequence[SettingRefused]) -> None:
    """Raise what is wrong, all of it at once."""
    if refused:
        raise refused[0] if len(refused) == 1 else SettingsRefused(tuple(refused))


def _refused(place: str, error: ErrorDetails) -> SettingRefused:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return _unknown(place, name)
    where = ".".join(str(part) for part in error["loc"] if isinstance(part, str) and not part.startswith("constrained"))
    called = variable(where) if place == "environment" else where
    value = repr(shown(where, error["input"]))
    return SettingRefused(
        place,
        f"{called} is {value}, and {_said(error['msg'])}",
        "give it such a value, or leave it out for the default",
    )


def _said(message: str) -> str:
    """Turn pydantic's sentence into the rest of ours."""
    return message[:1].lower() + message[1:]


def _unknown(place: str, name: str) -> SettingRefused:
    near = difflib.get_close_matches(name.replace("-", "_"), Settings.model_fields, 1)
    expected = f"did you mean {near[0]}?" if near else f"there are {', '.join(Settings.model_fields)}"
    return SettingRefused(
        place, f"there is no setting {name}: {expected}", "mend its name, or remove it; `clew settings` lists them all"
    )


class _Environment(EnvSettingsSource):
    """Reads lists as `a,b`, and Spark's settings as `K=V K=V`, or both as JSON."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        if value.lstrip().startswith(("[", "{")):
            try:
                return json.loads(value)
            except json.JSONDecodeError as error:
                raise SettingRefused(
                    "environment", f"{variable(field_name)} begins as JSON and is none ({error})", "mend it"
                ) from None
        if field_name == "conf":
            return pairs(shlex.split(value), f"environment: {variable('conf')}")
        return words(value)


def words(text: str) -> list[str]:
    """Read a list as Spark's own commands take it: with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def pairs(texts: Sequence[str], place: str) -> dict[str, str]:
    """Read `K=V`, as `spark-submit --conf` takes it."""
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise SettingRefused(place, f"{text!r} is no K=V", f"write it as {name or 'NAME'}={value or 'VALUE'}")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


def from_texts(texts: Sequence[str]) -> dict[str, Any]:
    """Read what `--set NAME=VALUE` gives, each value as in the environment."""
    given = pairs(texts, "--set")
    _tell([_unknown("--set", name) for name in given if name not in Settings.model_fields])
    return _read({variable(name): value for name, value in given.items()})


def _environment() -> dict[str, Any]:
    given = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}
    known = {variable(name) for name in Settings.model_fields}
    # Others may put names of their own here, so only what looks like one of ours is a mistake.
    near = {name: difflib.get_close_matches(name, known, 1, cutoff=0.85) for name in sorted(given.keys() - known)}
    _tell([_misspelt(name, meant[0]) for name, meant in near.items() if meant])
    return _read({name: given[name] for name in given.keys() & known})


def _misspelt(name: str, meant: str) -> SettingRefused:
    return SettingRefused(
        "environment", f"there is no setting {name}: did you mean {meant}?", "mend its name, or unset it"
    )


def _read(given: Mapping[str, str]) -> dict[str, Any]:
    source = _Environment(Settings, env_prefix=_PREFIX)
    source.env_vars = {name.lower(): value for name, value in given.items()}
    return source()


def _file() -> tuple[str, dict[str, Any]]:
    own, project = Path("clew.toml"), Path("pyproject.toml")
    if own.is_file():
        return str(own), _named(_toml(own))
    table = _toml(project).get("tool", {}).get("clew") if project.is_file() else None
    return "pyproject.toml", _named(table or {})


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    """Take `turn-seconds` for `turn_seconds`, and numbers of Spark's settings for their text."""
    settings = {name.replace("-", "_"): value for name, value in table.items()}
    if isinstance(settings.get("conf"), dict):
        settings["conf"] = dict(_flat("", settings["conf"]))
    return settings


def _flat(prefix: str, table: Mapping[str, Any]) -> "list[tuple[str, Any]]":
    """Put names together again that TOML takes apart at their dots."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found += _flat(f"{name}.", value)
        else:
            found.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingRefused(str(path), f"it cannot be read ({error})", "mend it: it must be TOML") from None


def shown(name: str, value: Any) -> Any:
    """Return a value as it may be seen: without secrets."""
    if isinstance(value, dict):
        return {key: shown(key, text) for key, text in value.items()}
    if isinstance(value, str):
        return "***" if _SECRET.search(name) else masked(value)
    return value
