"""Flags that several commands have, and what they and the settings come to."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from clew.app.settings import EngineName, Settings, from_texts, in_force, pairs, shown, words
from clew.run import SparkOptions

_SPARK = ("master", "conf", "packages", "jars", "py_files")

EngineFlag = Annotated[
    EngineName | None,
    typer.Option("--engine", help="inline runs in this process, without Spark. [default: spark]", show_default=False),
]
Master = Annotated[str | None, typer.Option("--master", metavar="M", help="Spark's master, as in local[4].")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="K=V", help="A setting of Spark; may be given more than once."),
]
Packages = Annotated[
    list[str] | None,
    typer.Option("--packages", metavar="G:N:V,...", help="Maven coordinates of jars that Spark fetches."),
]
Jars = Annotated[
    list[str] | None, typer.Option("--jars", metavar="FILES", help="Jars for the driver and the executors.")
]
PyFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--py-files",
        metavar="FILES",
        help="Python code that the pipeline file and the executors import: .py, .zip or .egg.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting of `clew settings`; may be given more than once."),
]


def spark_flags(
    master: str | None,
    conf: Sequence[str] | None,
    packages: Sequence[str] | None,
    jars: Sequence[str] | None,
    py_files: Sequence[str] | None,
    others: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Read the flags that are about Spark, and those given by `--set`."""
    lists = {"packages": packages, "jars": jars, "py_files": py_files}
    given: dict[str, Any] = {name: words(",".join(texts or ())) for name, texts in lists.items()}
    given |= {"master": master, "conf": pairs(conf or (), "--conf")}
    own = {name: value for name, value in given.items() if value}
    return {**from_texts(others or ()), **own}


def ready_to_load(py_files: Sequence[str] | None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings that hold for a command that loads a pipeline file, and let it import what the file needs."""
    given = words(",".join(py_files or ()))
    SparkOptions(py_files=tuple(given)).require_files()
    settings = in_force({**(flags or {}), "py_files": given})
    make_importable(settings.py_files)
    return settings


def make_importable(paths: Sequence[str]) -> None:
    """Let this process import the same Python files that executors get, before the pipeline file is loaded."""
    modules = [path for path in paths if path.endswith(".py") and os.path.isfile(path)]
    places = [os.path.abspath(path) for path in paths if not path.endswith(".py") and os.path.isfile(path)]
    if modules:
        # By themselves, for what else is in their directories the executors do not get.
        folder = tempfile.mkdtemp(prefix="clew-py-files-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for path in modules:
            os.symlink(os.path.abspath(path), os.path.join(folder, os.path.basename(path)))
        places.append(folder)
    sys.path[:0] = [place for place in places if place not in sys.path]


def spark_options(engine: str, settings: Settings, flags: Mapping[str, Any]) -> SparkOptions:
    """Return what a session is to be made with.

    What stands in a file is meant for runs on Spark. What is given for this run is passed on in any case, to be refused
    where it can have no effect.
    """
    if engine != "inline":
        return settings.spark
    return Settings(**{name: flags[name] for name in _SPARK if flags.get(name)}).spark


def spark_words(options: SparkOptions, secrets: bool = True) -> list[str]:
    """Return the words of a command line that say the same."""
    found = ["--master", options.master] if options.master else []
    for key, value in options.conf.items():
        found += ["--conf", f"{key}={value if secrets else shown(key, value)}"]
    lists = {"--packages": options.packages, "--jars": options.jars, "--py-files": options.py_files}
    return found + [word for flag, values in lists.items() if values for word in (flag, ",".join(values))]
