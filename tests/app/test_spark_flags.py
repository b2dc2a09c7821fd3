"""--conf, --packages, --jars and --py-files: read, refused where they can do nothing, and passed on by chaos."""

import sys
import zipfile
from pathlib import Path

import pytest

from clew.app.chaos import Request
from clew.app.flags import make_importable, spark_flags, spark_words
from clew.app.run import Request as RunRequest
from clew.app.run import _held
from clew.app.settings import Settings
from clew.errors import SetupFailed
from clew.run import SparkOptions
from tests.app.pipelines import call, log_url, write, write_numbers


def test_lists_may_have_commas_or_be_repeated() -> None:
    flags = spark_flags("local", ["a=1", "b=x=y"], ["g:n:1,g:m:1", "g:o:1"], None, ["a.py"], ["poll=2"])
    assert flags == {
        "master": "local", "conf": {"a": "1", "b": "x=y"}, "packages": ["g:n:1", "g:m:1", "g:o:1"],
        "py_files": ["a.py"], "poll": "2",
    }  # fmt: skip


def test_jars_and_packages_join_those_in_the_configuration() -> None:
    options = SparkOptions(conf={"spark.jars": "a.jar"}, jars=("b.jar", "c.jar"), packages=("g:n:1",))
    assert options.configuration == {"spark.jars": "a.jar,b.jar,c.jar", "spark.jars.packages": "g:n:1"}


@pytest.mark.parametrize("words", [("--conf", "spark.a=1"), ("--jars", "a.jar"), ("--packages", "a:b:1")])
@pytest.mark.parametrize("command", ["run", "verify", "chaos"])
def test_they_are_refused_with_the_inline_engine(tmp_path: Path, command: str, words: tuple[str, str]) -> None:
    file = write_numbers(tmp_path)
    place = () if command == "chaos" else ("--log", log_url(tmp_path))
    if command == "verify":
        assert call("run", file, "--engine", "inline", *place).exit_code == 0
    result = call(command, file, "--engine", "inline", *place, *words)
    assert result.exit_code == 1
    sentence = f"error: {words[0]} cannot be used with the inline engine, which has no Spark; use --engine spark"
    assert sentence in result.stderr


def test_what_is_no_setting_of_spark_is_refused(tmp_path: Path) -> None:
    result = call("run", write_numbers(tmp_path), "--conf", "spark.a")
    assert result.exit_code == 1
    assert "error: --conf: 'spark.a' is no K=V; write it as spark.a=VALUE" in result.stderr


def test_files_that_are_not_there_or_no_code_are_refused() -> None:
    with pytest.raises(SetupFailed, match=r"--py-files a.tar is no Python code; give it .py, .zip, .egg files"):
        SparkOptions(py_files=("a.tar",)).require_files()
    with pytest.raises(SetupFailed, match=r"--jars nowhere.jar: there is no such file; give the path of a file that"):
        SparkOptions(jars=("nowhere.jar",)).require_files()
    SparkOptions(jars=("https://example.com/a.jar",)).require_files()


def test_the_driver_imports_the_same_files_before_it_loads_the_pipeline(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    write(code, "alone_given.py", "X = 1\n")
    write(code, "beside_it.py", "Y = 1\n")
    with zipfile.ZipFile(code / "packed.zip", "w") as archive:
        archive.writestr("packed_given.py", "Z = 1\n")
    text = "from alone_given import X\nfrom packed_given import Z\nfrom clew import Pipeline, generator\n"
    text += "import pyarrow as pa\np = Pipeline('p')\np.source('s', generator(lambda i: pa.table({'n': [X]}), 1))\n"
    file = write(tmp_path, "needs_code.py", text)
    before = list(sys.path)
    try:
        assert call("check", file).exit_code == 1
        given = f"{code / 'alone_given.py'},{code / 'packed.zip'}"
        assert call("check", file, CLEW_PY_FILES=given).exit_code == 0
        with pytest.raises(ImportError):
            __import__("beside_it")
    finally:
        sys.path[:] = before


def test_files_that_are_missing_are_left_to_be_refused_later() -> None:
    before = list(sys.path)
    make_importable(["nowhere.py", "nowhere.zip"])
    assert sys.path == before


def test_chaos_passes_them_on_and_shows_no_secrets() -> None:
    options = SparkOptions("local[2]", {"spark.a": "b", "my.password": "pw"}, ("g:n:1",), ("a.jar",), ("a.py", "b.zip"))
    words = ["--master", "local[2]", "--conf", "spark.a=b", "--conf", "my.password=pw", "--packages", "g:n:1"]
    words += ["--jars", "a.jar", "--py-files", "a.py,b.zip"]
    assert spark_words(options) == words
    request = Request("f.py", 1, 2, None, None, "spark", options, ())
    assert "pw" not in request.again
    assert "--conf spark.a=b" in request.again


LOADING = ("check", "graph", "status", "gc", "quarantine list", "quarantine show", "quarantine retry",
           "quarantine drop", "trace back", "trace forward")  # fmt: skip


@pytest.mark.parametrize("command", LOADING)
def test_every_command_that_loads_a_pipeline_file_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    name = f"library_of_{command.replace(' ', '_')}"
    (tmp_path / "lib").mkdir()
    library = write(tmp_path / "lib", f"{name}.py", "X = 1\n")
    text = f"from {name} import X\nfrom clew import Pipeline, generator\nimport pyarrow as pa\n"
    text += "p = Pipeline('p')\np.source('s', generator(lambda i: pa.table({'n': [X]}), 1))\n"
    file = write(tmp_path, f"of_{name}.py", text)
    more = {"quarantine show": ["s#1"], "trace back": ["s.out#1"], "trace forward": ["s.out#1"]}.get(command, [])
    assert f"No module named '{name}'" in call(*command.split(), file, *more).stderr
    refused = call(*command.split(), file, *more, "--py-files", "nowhere.py")
    assert "--py-files nowhere.py: there is no such file" in refused.stderr
    loaded = call(*command.split(), file, *more, "--py-files", library)
    if command in ("check", "graph"):
        assert loaded.exit_code == 0
    elif not command.startswith("trace"):
        assert f"`clew run {file} --py-files {library}` starts it" in loaded.stderr
    assert "No module named" not in loaded.stderr


def test_hints_name_the_python_files_and_the_log_that_the_run_had() -> None:
    request = RunRequest("sp.py", Settings(), False, "log", False, named="sqlite:///l.db", py_files=["a.py", "b.zip"])
    words = "sp.py --log sqlite:///l.db --py-files a.py,b.zip"
    assert f"`clew quarantine list {words}` shows what it is" in _held(request, 2)
    assert request.again == f"clew run {words}"
