"""The files of docs/deploy, and the command lines in them."""

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import ROOT

DEPLOY = ROOT / "docs" / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SCRIPTS = sorted((DEPLOY / "spark").glob("*.sh"))
PIPELINE = DEPLOY / "sales.py"


def resources(kind: str | None = None) -> list[dict[str, Any]]:
    """Return what the manifests declare, or what of it is of one kind."""
    found = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]
    return [one for one in found if kind in (None, one["kind"])]


def pods() -> list[dict[str, Any]]:
    """Return the specifications of all pods, with their labels."""
    jobs = [one["spec"]["jobTemplate"]["spec"]["template"] for one in resources("CronJob")]
    return [*(one["spec"]["template"] for one in resources("Deployment")), *jobs]


def containers() -> list[dict[str, Any]]:
    """Return all containers, each of which runs `clew` with its arguments."""
    return [container for pod in pods() for container in pod["spec"]["containers"]]


def unit(path: Path) -> configparser.ConfigParser:
    """Read a unit of systemd."""
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(path)
    return found


def environment(path: Path) -> dict[str, str]:
    """Read a file of variables."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def submitted(path: Path) -> tuple[list[str], str, list[str]]:
    """Return what `spark-submit` is given in a script: its own words, the file, and the words of the file."""
    (line,) = re.findall(r"^exec spark-submit (.+)$", path.read_text().replace("\\\n", " "), re.MULTILINE)
    words = shlex.split(line)
    file = next(number for number, word in enumerate(words) if word.endswith(".py"))
    return words[:file], words[file], words[file + 1 :]


def clew_words() -> Iterator[tuple[str, list[str]]]:
    """Yield every command line of Clew in these files, without `clew`, and where it is."""
    for container in containers():
        yield f"container {container['name']}", container["args"]
    for path in UNITS:
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program.endswith("/bin/clew")
        yield path.name, words
    for path in SCRIPTS:
        yield path.name, submitted(path)[2]


def require(words: list[str]) -> bool:
    """Say whether a command that a page shows, of another program than Clew, is about files and names that exist."""
    match words:
        case ["docker", "build", "-f", file, "-t", image, "."]:
            return (ROOT / file).is_file() and image in {container["image"] for container in containers()}
        case ["kubectl", "apply", "-f", path]:
            return (ROOT / path).is_dir()
        case ["kubectl", "scale", "deployment", "-l", selector, "--replicas", count] if count.isdigit():
            asked = dict(label.split("=") for label in selector.split(","))
            return any(asked.items() <= one["metadata"]["labels"].items() for one in resources("Deployment"))
        case ["systemctl", "enable", "--now", *names]:
            return bool(names) and all(
                (DEPLOY / "systemd" / re.sub("@.+", "@.service", name)).exists() for name in names
            )
        case ["sh", path]:
            return (ROOT / path) in SCRIPTS
    return False
