"""What a session of Clew's own is made with; no pyspark here, so that asking for it costs nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from clew.errors import SetupFailed

_PYTHON = (".py", ".zip", ".egg")


@dataclass(frozen=True)
class SparkOptions:
    """The options of `spark-submit` that a session of Clew's own takes.

    `conf` are Spark's settings by their names, `packages` Maven coordinates, `jars` and `py_files` paths.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were used, as a command line has them."""
        named = {
            "--master": self.master,
            "--conf": self.conf,
            "--packages": self.packages,
            "--jars": self.jars,
            "--py-files": self.py_files,
        }
        return tuple(option for option, value in named.items() if value)

    @property
    def configuration(self) -> dict[str, str]:
        """All of it but the master and the Python files, as Spark's settings."""
        settings = dict(self.conf)
        for key, values in (("spark.jars.packages", self.packages), ("spark.jars", self.jars)):
            if values:
                settings[key] = ",".join([*([settings[key]] if settings.get(key) else []), *values])
        return settings

    def require_files(self) -> None:
        """Raise SetupFailed when a file is not there, or is of a kind that Python cannot import from."""
        for path in self.py_files:
            if not path.endswith(_PYTHON):
                raise SetupFailed(f"--py-files {path} is no Python code", f"give it {', '.join(_PYTHON)} files")
        for option, paths in (("--jars", self.jars), ("--py-files", self.py_files)):
            for path in paths:
                # Spark fetches what has a scheme; what is not there it would only warn of.
                if "://" not in path and not os.path.isfile(path):
                    raise SetupFailed(
                        f"{option} {path}: there is no such file", "give the path of a file that is there"
                    )

    def refuse_connect(self, environment: Mapping[str, str]) -> None:
        """Raise SetupFailed where PySpark would be led to Spark Connect, by these options or by the environment."""
        asks = self._connect(environment)
        if asks:
            raise SetupFailed(
                f"{asks} asks for Spark Connect, and Clew needs a classic session, with RDDs",
                "leave it out, and run Clew where Spark's driver can run, with --master or by spark-submit",
            )

    def _connect(self, environment: Mapping[str, str]) -> str:
        """Name what asks for Spark Connect, as `SparkSession.builder` looks for it; "" where nothing does."""
        if (self.master or "").startswith("sc://"):
            return f"the master {self.master}"
        if "spark.remote" in self.conf:
            return "spark.remote"
        for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
            if name in environment:
                return f"the variable {name}"
        mode = self.conf.get("spark.api.mode", environment.get("SPARK_API_MODE", "")).lower()
        if mode == "connect":
            return "spark.api.mode" if "spark.api.mode" in self.conf else "the variable SPARK_API_MODE"
        default = mode != "classic" and environment.get("SPARK_CONNECT_MODE") == "1"
        return "the variable SPARK_CONNECT_MODE" if default else ""

    def refuse_inline(self) -> None:
        """Raise SetupFailed, for an engine without Spark; a master is a habit, and changes nothing there."""
        replace(self, master=None).refuse("with the inline engine, which has no Spark", "use --engine spark")

    def refuse(self, where: str, cure: str) -> None:
        """Raise SetupFailed where these options could have no effect."""
        if self.given:
            raise SetupFailed(f"{', '.join(self.given)} cannot be used {where}", cure)
