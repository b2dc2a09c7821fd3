"""`clew version`."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

from clew import __version__
from clew.app.target import Json
from clew.app.terminal import print_json


def version(as_json: Json = False) -> None:
    """Print the versions of Clew and of what it stands on."""
    # From the packages' metadata: importing pyspark takes a second.
    versions = {"clew": __version__, "python": platform.python_version()}
    versions |= {package: _installed(package) for package in ("pyspark", "pyarrow")}
    if as_json:
        print_json(versions)
        return
    rest = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "clew")
    typer.echo(f"clew {__version__} ({rest})")


def _installed(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:
        return "not installed"
