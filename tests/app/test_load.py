"""A pipeline is loaded from a Python file, by path and by name."""

import pickle
import sys
from pathlib import Path

import pytest

from clew.app.target import Target
from clew.errors import GraphError, GraphErrors
from clew.pipeline.load import ImportRaised, LoadFailed, load
from tests.app.pipelines import write, write_numbers

ONE = 'from clew import Pipeline\none = Pipeline("one")\n'
TWO = f'{ONE}two = Pipeline("two")\n'


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_only_pipeline_of_a_file_is_found(tmp_path: Path) -> None:
    assert load(write(tmp_path, "a.py", ONE)).name == "one"


def test_a_second_name_for_the_same_pipeline_is_no_second_pipeline(tmp_path: Path) -> None:
    assert load(write(tmp_path, "a.py", f"{ONE}alias = one\n")).name == "one"


def test_one_of_several_pipelines_is_chosen_by_name(tmp_path: Path) -> None:
    assert load(write(tmp_path, "a.py", TWO), "two").name == "two"


def test_several_pipelines_are_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"2 pipelines: one, two; say which one: .*a\.py:one or .*a\.py:two"):
        load(write(tmp_path, "a.py", TWO))


def test_an_unknown_name_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"no pipeline called three; say which one: .*a\.py:one or"):
        load(write(tmp_path, "a.py", TWO), "three")


def test_a_file_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="declares no pipeline; declare one"):
        load(write(tmp_path, "a.py", "x = 1\n"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="no such file"):
        load(str(tmp_path / "missing.py"))


@pytest.mark.parametrize("name", ["a.txt", "folder.py"])
def test_what_is_not_a_python_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text(ONE)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(LoadFailed, match="not a Python file"):
        load(str(tmp_path / name))


def test_modules_beside_the_file_import(tmp_path: Path) -> None:
    assert load(write_numbers(tmp_path)).name == "numbers"


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "same_name.py", f'from clew import Pipeline\np = Pipeline("{name}")\n')
    assert [load(str(tmp_path / name / "same_name.py")).name for name in ("first", "second")] == ["first", "second"]


def test_a_file_called_like_a_module_of_python_does_not_replace_it(tmp_path: Path) -> None:
    import json

    assert load(write(tmp_path, "json.py", ONE)).name == "one"
    assert sys.modules["json"] is json


def test_a_file_that_changed_is_loaded_again(tmp_path: Path) -> None:
    load(write(tmp_path, "changing.py", ONE))
    assert load(write(tmp_path, "changing.py", ONE.replace('"one"', '"another"'))).name == "another"


def test_an_exception_at_import_shows_the_users_frames_and_not_ours(tmp_path: Path) -> None:
    text = "def f():\n    return 1 / 0\n\nf()\n"
    with pytest.raises(ImportRaised) as raised:
        load(write(tmp_path, "broken.py", text))
    told = str(raised.value)
    assert "ZeroDivisionError: division by zero" in told
    assert f'"{tmp_path / "broken.py"}", line 4' in told
    assert f'"{tmp_path / "broken.py"}", line 2, in f' in told
    assert "importlib" not in told
    assert "pipeline/load.py" not in told
    assert "broken" not in sys.modules


def test_a_syntax_error_shows_its_line(tmp_path: Path) -> None:
    with pytest.raises(ImportRaised, match=r'syntax\.py", line 2(.|\n)*SyntaxError'):
        load(write(tmp_path, "syntax.py", "x = 1\ny = (\n"))


def test_a_file_that_ends_the_process_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ImportRaised, match=r"SystemExit: 4\).*__main__"):
        load(write(tmp_path, "exits.py", "import sys\nsys.exit(4)\n"))


def test_a_wrong_declaration_is_the_pipelines_own_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot name a pipeline"):
        load(write(tmp_path, "a.py", 'from clew import Pipeline\np = Pipeline("a b")\n'))


def test_a_wrong_window_is_told_with_the_users_line(tmp_path: Path) -> None:
    text = "from clew import Tumbling\n\nwindow = Tumbling('soon', on='at')\n"
    with pytest.raises(GraphError, match=r"windows\.py:3: 'soon' is not a duration"):
        load(write(tmp_path, "windows.py", text))


@pytest.mark.parametrize("error", [LoadFailed("a.py", "what", "cure"), ImportRaised("a.py", "error", "frames")])
def test_errors_survive_a_process_boundary(error: Exception) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a.py", Target("a.py", None)),
        ("a.py:sales", Target("a.py", "sales")),
        ("dir:x/a.py", Target("dir:x/a.py", None)),
        ("dir:x/a.py:sales", Target("dir:x/a.py", "sales")),
    ],
)
def test_a_target_is_a_file_and_perhaps_a_name(text: str, target: Target) -> None:
    assert Target.parse(text) == target


WRONG = f"""{ONE}import pyarrow as pa
from clew import Tumbling, generator
orders = one.source("orders", generator(lambda i: pa.table({{"n": [i]}}), 3), atempts=1)
"""


def test_what_was_wrong_before_a_file_raised_is_told_with_it(tmp_path: Path) -> None:
    with pytest.raises(GraphErrors) as wrong:
        load(write(tmp_path, "a.py", f"{WRONG}Tumbling('1 parsec', on='t')\n"))
    first, second = wrong.value.errors
    assert "did you mean attempts?" in first.message
    assert (first.location, second.location) == (f"{tmp_path}/a.py:5", f"{tmp_path}/a.py:6")
    with pytest.raises(ImportRaised) as raised:
        load(write(tmp_path, "a.py", f"{WRONG}orders.nope()\n"))
    said = str(raised.value)
    assert "has no attribute 'nope'" in said
    assert "and this is wrong in what it had declared by then:\n" in said
    assert "did you mean attempts?" in said
