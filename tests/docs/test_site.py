"""The docs build without a warning, and the reference has everything that a user imports."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import errors
from tests.docs.pages import ROOT

REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
#: What a program imports besides `clew` itself, to run a pipeline and to look at what came of it.
OF_RUN = ("run", "verify", "SparkOptions", "Policy", "Progress", "OperatorProgress", "Verdict")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(place)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def names() -> list[str]:
    """Return the path of everything that the reference shows."""
    return re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in REFERENCE), re.MULTILINE)


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


def test_everything_that_a_user_imports_is_in_the_reference() -> None:
    shown = [found(path) for path in names()]
    wanted = {name: getattr(clew, name) for name in clew.__all__}
    wanted |= {f"run.{name}": found(f"clew.run.{name}") for name in OF_RUN}
    wanted |= {name: thing for name, thing in vars(errors).items() if getattr(thing, "__module__", "") == "clew.errors"}
    assert [name for name, thing in wanted.items() if not any(thing is one for one in shown)] == []
    assert len(names()) == len(set(names()))


def test_everything_in_the_reference_says_what_it_is_in_a_sentence() -> None:
    for path in names():
        said = inspect.getdoc(found(path)) or ""
        assert re.match(r"[A-Z`].*[.:?]$", said.splitlines()[0] if said else ""), f"{path}: {said!r}"


def test_every_method_of_what_is_shown_with_its_methods_says_what_it_does() -> None:
    text = "\n".join(page.read_text() for page in REFERENCE)
    whole = [path for path in names() if f"::: {path}\n    options:" not in text and inspect.isclass(found(path))]
    assert len(whole) > 30
    for path in whole:
        own = {name: thing for name, thing in vars(found(path)).items() if not name.startswith("_")}
        methods = {name: thing for name, thing in own.items() if callable(thing) or isinstance(thing, property)}
        assert [name for name, thing in methods.items() if not inspect.getdoc(thing)] == [], path


def test_the_site_shows_all_of_it(site: Path) -> None:
    shown = "\n".join((site / "reference" / f"{page.stem}.html").read_text() for page in REFERENCE)
    for path in names():
        assert f'id="{path}"' in shown, path
    # By a name that is a module too, the module would be shown, and not the function.
    assert "doc-module" not in shown
    assert "Declare a source; its events leave by the port" in shown


def test_the_first_page_is_the_readme_and_its_links_stay_in_the_site(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert 'href="sinks.html"' in page
    assert "first.py" in page
    links = set(re.findall(r'href="(?!https:)(\w[^"#]*)', page))
    assert links - {str(file.relative_to(site)) for file in site.rglob("*")} == set()
