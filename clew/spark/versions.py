"""A check at the start: workers must run the Python and the pyarrow that the driver runs.

Code and Arrow data go from one to the other; with other versions they fail late, or in ways that name neither.
"""

import platform
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from clew.errors import SetupFailed

_CURE = (
    "install on all executors what the driver has, and say where it is with PYSPARK_PYTHON, or send it with "
    "spark.archives"
)


def require_same_versions(session: SparkSession) -> None:
    """Ask workers for their versions; raises SetupFailed when they cannot run what the driver sends."""
    context = session.sparkContext
    asked = max(context.defaultParallelism, 1)
    try:
        found = context.parallelize(range(asked), asked).mapPartitions(_versions).collect()
    except Exception as error:
        raise unable(str(error), context.pythonExec) from error
    own = _own()
    for host, versions in found:
        for package, version in versions.items():
            if version != own[package]:
                raise SetupFailed(
                    f"a worker on {host} has {package} {version}, and the driver has {own[package]}", _CURE
                )


def _own() -> dict[str, str]:
    major, minor, _ = platform.python_version_tuple()
    return {"Python": f"{major}.{minor}", "pyarrow": pa.__version__}


def _versions(_: Iterable[Any]) -> list[tuple[str, dict[str, str]]]:
    return [(platform.node(), _own())]


def unable(text: str, interpreter: str) -> SetupFailed:
    """Say why no worker answered: Spark itself refuses another Python, and a missing one or a missing package."""
    other = re.search(r"Python in worker has different version:? (\d+\.\d+)", text)
    if other:
        own = _own()["Python"]
        return SetupFailed(f"the workers have Python {other[1]}, and the driver has Python {own}", _CURE)
    if "Cannot run program" in text:
        return SetupFailed(f"the workers have no Python at {interpreter}", _CURE)
    missing = re.search(r"No module named '?([\w.]+)", text)
    if missing:
        return SetupFailed(f"the workers' Python has no package {missing[1]}, which the driver has", _CURE)
    first = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return SetupFailed(f"the workers could not be asked for their versions: {first.strip()[:300]}", _CURE)
