"""The Java on this machine, found without starting it."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

#: The oldest that Spark 4 runs on.
OLDEST = 17


@dataclass(frozen=True)
class Java:
    """A `java` command, or why there is none; the version is None where its installation does not tell."""

    path: str | None
    missing: str = ""
    version: str | None = None

    @property
    def too_old(self) -> bool:
        if self.version is None:
            return False
        # Until Java 8 it was called 1.8.
        return int(self.version.removeprefix("1.").split(".")[0]) < OLDEST


def find_java() -> Java:
    """Find the `java` that Spark will use."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not found or not os.path.exists(found):
        where = f"JAVA_HOME is {home}, where there is no bin/java" if home else "there is no java on the PATH"
        return Java(None, missing=where)
    release = Path(found).resolve().parent.parent / "release"
    text = release.read_text() if release.is_file() else ""
    version = re.search(r'^JAVA_VERSION="([0-9][^"]*)"', text, re.MULTILINE)
    return Java(found, version=version[1] if version else None)
