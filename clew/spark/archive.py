"""An archive of the classes that the driver JVM has loaded: the next one maps them in place of loading them anew.

Java writes it at a clean exit, under a name of that process's own. It gets its final name when Java has ended well, so
that what was cut off is never found there. Java checks for itself that an archive is of its kind, and does without it
otherwise.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from clew.spark.java import Java
from clew.spark.options import SparkOptions

_JAVA = "spark.driver.extraJavaOptions"
#: Where an archive does not fit, Java would say so on stdout.
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


@dataclass(frozen=True)
class ClassArchive:
    """The archive for one Java and one PySpark."""

    path: Path

    @classmethod
    def of(cls, java: Java) -> "ClassArchive":
        """Return where the archive for this Java is, or will be."""
        told = f"{java.path} {java.version} {version('pyspark')}"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = f"spark-{version('pyspark')}-java-{java.version}-{hashlib.sha256(told.encode()).hexdigest()[:8]}.jsa"
        return cls(cache / "clew" / name)

    @property
    def _written(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")

    def applied_to(self, options: SparkOptions) -> SparkOptions:
        """Have the JVM use the archive, or, where there is none yet, make it."""
        if (options.master or "local").partition("[")[0] != "local" or " " in str(self.path):
            # The archive is for Clew's own driver alone; and Java's options are cut at spaces.
            return options
        if self.path.exists():
            words = f"-Xshare:auto -XX:SharedArchiveFile={self.path} {_SILENT}"
        else:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError:
                return options
            words = f"-XX:ArchiveClassesAtExit={self._written} {_SILENT}"
        own = options.conf.get(_JAVA, "")
        return replace(options, conf={**options.conf, _JAVA: f"{words} {own}".strip()})

    def keep(self, ended: Callable[[], bool]) -> None:
        """Keep what the JVM writes at its end, which `ended` waits for, saying whether it was a good one."""
        if self.path.exists() or not self.path.parent.exists():
            return
        good = ended()
        with suppress(OSError):
            if good:
                self._written.replace(self.path)
            else:
                self._written.unlink()
