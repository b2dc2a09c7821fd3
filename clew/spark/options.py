"""What a session of Clew's own is made with; no pyspark here, so that asking for it costs nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from clew.errors import SetupFailed

_PYTHON = (".py", ".zip", ".egg")


@dataclass(frozen=True)
class SparkOptions:
    """The options of `spark-submit` that a session of Clew's own takes."""

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

    def refuse_inline(self) -> None:
        """Raise SetupFailed, for an engine without Spark; a master is a habit, and changes nothing there."""
        replace(self, master=None).refuse("with the inline engine, which has no Spark", "use --engine spark")

    def refuse(self, where: str, cure: str) -> None:
        """Raise SetupFailed where these options could have no effect."""
        if self.given:
            raise SetupFailed(f"{', '.join(self.given)} cannot be used {where}", cure)
