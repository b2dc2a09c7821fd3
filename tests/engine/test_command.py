"""`clew engine`: it says where it is, ends when it is told to or nobody calls, and says what is wrong."""

import os
from pathlib import Path
from typing import Any

import pytest

from clew.errors import EngineLost
from clew.pipeline.load import load
from clew.serve import Computing, ServiceOptions, serve
from clew.spark.client import RemoteEngine
from clew.spark.program import Program, fingerprint
from tests.app.pipelines import call, write, write_numbers
from tests.engine.served import Command, InThread, Told, job, numbers, read, until


def code_of(file: str) -> str:
    return fingerprint(load(file).graph(), Program.of_file(file))


def test_it_serves_and_ends_after_the_turns_in_flight(tmp_path: Path) -> None:
    file = write(tmp_path, "slow.py", SLOW)
    with Command(file, tmp_path) as command:
        engine, (url, _) = RemoteEngine(command.address, code_of(file)), command.address()
        assert engine.hello["pid"] == command.process.pid
        call = InThread(lambda: engine.map(job(), read()))
        until((tmp_path / "began").exists)
        end = InThread(command.told_to_end)
        until(lambda: not command.address_file.exists())
        (tmp_path / "go").touch()
        assert call.ended().result.results[0].pieces == 1
        code, out, err = end.ended().result
    assert (code, err) == (0, "")
    assert out == f"engine of pipeline slow at {url}, pid {command.process.pid}\n"
    engine.close()


SLOW = """
import time
from pathlib import Path
import pyarrow as pa
from clew import Pipeline, generator

HERE = Path(__file__).parent


def make(index):
    (HERE / "began").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return pa.table({"n": [index]})


pipeline = Pipeline("slow")
pipeline.source("source", generator(make, 20))
"""


class Stopped:
    """An event that is set when it has been looked at often enough."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def wait(self, seconds: float) -> bool:
        self._looks -= 1
        return self._looks < 0


def serving(tmp_path: Path, stop: Any, died: Any = None, **given: Any) -> list[str]:
    said: list[str] = []
    options = {"token_file": str(tmp_path / "token"), "address_file": str(tmp_path / "address"), "idle": None, **given}
    alive = options.pop("alive", lambda: True)
    program = Program.of_file(write(tmp_path, "any.py", ""))
    computing = Computing(Told(), is_alive=alive)
    assert serve(numbers(), program, ServiceOptions(**options), computing, stop, died, said.append)
    assert not (tmp_path / "address").exists()
    return said


def test_it_ends_when_nobody_calls(tmp_path: Path) -> None:
    import threading

    told = serving(tmp_path, threading.Event(), idle=0.2)
    assert told[0].startswith("engine of pipeline numbers at grpc://127.0.0.1:")
    assert told[1] == "nobody has called for 0.2 s: the engine ends"


def test_an_address_that_another_has_written_is_left(tmp_path: Path) -> None:
    class Overwritten(Stopped):
        def wait(self, seconds: float) -> bool:
            (tmp_path / "address").write_text("grpc://elsewhere:1")
            return super().wait(seconds)

    with pytest.raises(AssertionError):
        serving(tmp_path, Overwritten(0))
    assert (tmp_path / "address").read_text() == "grpc://elsewhere:1"


def test_it_ends_with_its_driver(tmp_path: Path) -> None:
    class Died(Exception):
        pass

    def died() -> None:
        raise Died

    with pytest.raises(Died):
        serving(tmp_path, Stopped(5), died, alive=lambda: False)


def test_a_driver_that_died_is_an_exit_code_of_its_own(tmp_path: Path) -> None:
    from clew.app import engine

    pid = os.fork()
    if not pid:
        os.dup2(os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT), 2)
        engine._died()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 70


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "nowhere"], "--listen nowhere is no HOST:PORT; give it as in 127.0.0.1:7077"),
        (["--listen", "0.0.0.0:0"], "an engine on 0.0.0.0 is reached from other machines"),
        (
            ["--tls-cert", "a.pem"],
            "TLS needs a certificate and its key; give both --tls-cert and --tls-key, or neither",
        ),
        (["--conf", "a=b"], "--conf cannot be used with the inline engine, which has no Spark; use --engine spark"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, words: list[str], said: str) -> None:
    result = call("engine", write_numbers(tmp_path), "--engine", "inline", *words)
    assert result.exit_code == 1
    assert said in result.stderr


def test_a_pipeline_that_needs_spark_is_refused_inline(tmp_path: Path) -> None:
    from tests.app.test_light import FRAMES

    result = call("engine", write(tmp_path, "frames.py", FRAMES), "--engine", "inline")
    assert "operator same works on DataFrames, which the inline engine has not" in result.stderr


def test_a_client_whose_engine_has_ended_says_so(tmp_path: Path) -> None:
    file = write_numbers(tmp_path)
    with Command(file, tmp_path, "--idle", "1") as command:
        code, out, _ = command.ended()
        assert (code, out.splitlines()[-1]) == (0, "nobody has called for 1 s: the engine ends")
        with pytest.raises(EngineLost, match="its address is not known"):
            RemoteEngine(command.address, code_of(file), patience=0.0)
