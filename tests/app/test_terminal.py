"""What a person at a terminal sees: a live table, a question, an interrupt that is explained."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

from rich.console import Console

from clew.app.figures import line, picture, summary
from clew.run import OperatorProgress
from tests.app.pipelines import call, kept, log_url, write_numbers


class Terminal:
    """The command line on a terminal of 80 columns."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.seen = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.environ.update(environment, TERM="xterm")
            os.execv(sys.executable, [sys.executable, "-m", "clew.app.main", *words])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read_until(self, enough: Callable[[str], object], patience: float = 60) -> None:
        until = time.monotonic() + patience
        while not enough(self.seen):
            assert time.monotonic() < until, self.seen
            if select.select([self._terminal], [], [], 0.2)[0] and not self._read():
                return

    def finish(self) -> int:
        self.read_until(lambda seen: False)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self) -> bool:
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            # Linux says so when the other side is gone.
            return False
        self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode())
        return bool(data)


def test_a_live_table_shows_every_operator(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    terminal = Terminal(*words, PAUSE="0.05", CLEW_FAULTS="after-generate@doubled#2:raise")
    assert terminal.finish() == 0, terminal.seen
    last = terminal.seen[terminal.seen.rindex("operator") :]
    assert re.search(r"source +finished +- +20 ", last)
    assert re.search(r"doubled +finished +20 +20 .* 1 ", last)
    assert re.search(r"doubled_sink +finished +20 +- +\d+", last)
    assert "doubled: CrashInjected: crash point after-generate in doubled" in last
    assert terminal.seen.count("operator") > 2, "the table was not drawn again while the run went on"
    # The figures are on the screen already.
    assert "events in" not in terminal.seen


def test_what_others_write_to_stderr_stands_on_lines_of_its_own(tmp_path: Path) -> None:
    file = Path(write_numbers(tmp_path))
    # As the JVM does: past Python, straight to the terminal.
    file.write_text(
        file.read_text().replace("    time.sleep(", '    os.system("echo stray words >&2")\n    time.sleep(')
    )
    terminal = Terminal(
        "run", str(file), "--engine", "inline", "--log", log_url(tmp_path), PAUSE="0.1", EVENTS="5"
    )  # fmt: skip
    assert terminal.finish() == 0, terminal.seen
    lines = [line.strip() for line in terminal.seen.splitlines()]
    assert lines.count("stray words") == 5


def test_ctrl_c_is_explained(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    terminal = Terminal(*words, PAUSE="0.05", EVENTS="400")
    terminal.read_until(lambda seen: re.search(r"doubled +running", seen))
    terminal.type("\x03")
    assert terminal.finish() == 130, terminal.seen
    assert "stopping after the turns in flight; press Ctrl-C again to stop at once" in terminal.seen
    assert "resumes the run where it stopped" in terminal.seen


def test_a_finished_log_draws_no_table(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    call(*words)
    terminal = Terminal(*words)
    assert terminal.finish() == 3, terminal.seen
    assert "backlog" not in terminal.seen
    assert "a finished log is final" in terminal.seen


def test_fresh_asks_before_it_throws_work_away(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    call(*words, POISON="13")
    refused = Terminal(*words, "--fresh")
    refused.read_until(lambda seen: "[y/N]" in seen)
    refused.type("n\n")
    assert refused.finish() == 1
    assert "holds an unfinished run of pipeline numbers" in refused.seen
    assert "nothing was changed" in refused.seen
    assert "resuming run " in call(*words).stderr
    assert kept(tmp_path) == [2 * number for number in range(20)]


def test_yes_answers_beforehand(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    call(*words, POISON="13")
    terminal = Terminal(*words, "--fresh", "--yes")
    assert terminal.finish() == 0, terminal.seen
    assert "[y/N]" not in terminal.seen


def test_events_of_a_turn_are_not_taken_for_a_number_of_turns() -> None:
    row = OperatorProgress("sums", "sums", "running", events_in=800, turns=5, turn_events=162)
    assert "backlog=0 turn_events=162 restarts=0" in line(row)
    assert "5 turns" in summary(row)
    with StringIO() as out:
        Console(file=out, width=120).print(picture("p", 1.0, [row]))
        assert "turn events" in out.getvalue()


def test_openlineage_events_stand_whole_above_the_live_table(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    terminal = Terminal(*words, CLEW_OPENLINEAGE="console")
    assert terminal.finish() == 0, terminal.seen
    events = [json.loads(text) for text in re.findall(r'\{"eventTime".*\}', terminal.seen)]
    # What ends before anybody has looked is told of as a whole, so that jobs may stand in any order.
    jobs = {event["job"]["name"]: [] for event in events}
    for event in events:
        jobs[event["job"]["name"]].append(event["eventType"])
    assert list(jobs.values()) == [["START", "COMPLETE"]] * 4
