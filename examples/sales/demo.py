"""What `make demo` runs: the sales pipeline, an operator killed in the middle, then the whole process, then the totals.

1. Orders are generated, and the pipeline is started on a real Spark session.
2. The operator `hourly` is made to fail in the middle of a turn. Its group restarts; the others go on.
3. The process is ended with kill -9, Spark's driver with it, and started again. It resumes from its log.
4. What is in the sink's tables is compared with what plain Spark SQL makes of the same files: equal to the cent, or
   the exit code is 1.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
os.chdir(HERE)

import totals  # noqa: E402  the pipeline's paths start here
from generate import generate  # noqa: E402
from pipeline import DATA, DATABASE, pipeline  # noqa: E402

from clew.run import masked, status  # noqa: E402

LOG = f"sqlite:///{DATA}/log.db"
#: In its seventh turn, when its work is done and nothing of it is logged yet.
FAULT = "after-generate@hourly#7:raise"
#: The process is killed when per_100 has made so many of its twelve totals.
KILL_AFTER = 3
#: Seconds between two lines of figures.
EVERY = 1.0

Rows = Mapping[str, Mapping[str, Any]]
BEGAN = time.monotonic()


def say(text: str = "") -> None:
    print(f"{time.monotonic() - BEGAN:5.1f} s  {text}" if text else "", flush=True)


def main() -> int:
    prepare()
    with temporary_directory() as temporary:
        killed_run(temporary)
        expected = resumed_run(temporary)
    return compare(expected)


def prepare() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    totals.clear()
    count = generate(Path(DATA, "orders"))
    say(f"{count:,} orders generated, in {len(list(Path(DATA, 'orders').iterdir()))} Parquet files")
    place = masked(DATABASE) if DATABASE else f"the SQLite file {DATA}/sales.db"
    say(f"totals go to {place}, the log is {DATA}/log.db")


def killed_run(temporary: str) -> None:
    """Run until hourly has failed and recovered and per_100 is in the middle, then kill everything."""
    say()
    say(f"the pipeline starts, with CLEW_FAULTS={FAULT}; Spark needs some seconds")
    with driver(temporary, {"CLEW_FAULTS": FAULT}) as process:
        show = Figures()
        for facts in reports(process):
            if facts["kind"] == "session":
                say("Spark is up")
            elif facts["kind"] == "figures":
                show(facts)
                if show.recovered and facts["operators"]["per_100"]["events_out"] >= KILL_AFTER:
                    break
        else:
            raise SystemExit(f"the pipeline ended before it could be killed:\n{tail()}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    say()
    say("kill -9: control, Spark's driver and all turns in flight are gone; what is left is the log and the tables")
    say(f"in the tables: {counted()}")
    for line in standing():
        say(line)


def resumed_run(temporary: str) -> dict[str, Any]:
    """Start the same command again and let it finish; returns the totals of plain Spark SQL."""
    say()
    say("started again: resuming from the log")
    expected = None
    with driver(temporary, {}, "compare") as process:
        show = Figures()
        for facts in reports(process):
            if facts["kind"] == "session":
                say("Spark is up")
            elif facts["kind"] == "figures":
                show(facts)
            elif facts["kind"] == "finished":
                say("the pipeline has finished; now the same totals by plain Spark SQL")
            elif facts["kind"] == "expected":
                expected = facts
        process.wait()
    if expected is None:
        raise SystemExit(f"the run failed:\n{tail()}")
    return expected


class Figures:
    """Shows what the operators have done, and what happened to hourly."""

    def __init__(self) -> None:
        self.recovered = False
        self._next = 0.0
        self._failed: tuple[float, Rows] | None = None
        self._back = 0.0

    def __call__(self, facts: Mapping[str, Any]) -> None:
        at, rows = facts["at"], facts["operators"]
        hourly = rows["hourly"]
        if hourly["restarts"] and self._failed is None:
            self._failed = (at, rows)
            say(f"hourly was killed in its turn {hourly['turns'] + 1}: {hourly['last_error']}")
        if self._failed is not None and not self.recovered:
            self._follow(at, rows)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            say(_line(rows))

    def _follow(self, at: float, rows: Rows) -> None:
        """Wait for hourly to come back, and to log totals again."""
        assert self._failed is not None
        failed_at, before = self._failed
        if not self._back and rows["hourly"]["phase"] not in ("restarting", "recovering"):
            self._back = at - failed_at
        if rows["hourly"]["events_out"] > before["hourly"]["events_out"]:
            self.recovered = True
            others = sum(row["turns"] - before[name]["turns"] for name, row in rows.items() if name != "hourly")
            say(
                f"hourly was restarted in {self._back:.1f} s and logged its next totals after {at - failed_at:.1f} s; "
                f"meanwhile the others committed {others} turns"
            )


def _line(rows: Rows) -> str:
    taken = {name: f"{name} {row['events_in'] or row['events_out']}" for name, row in rows.items()}
    return "events: " + ", ".join(taken.values())


def counted() -> str:
    rows = totals.row_counts()
    return ", ".join(f"{count:,} rows of {table}" for table, count in rows.items()) or "nothing yet"


def standing() -> Iterator[str]:
    """Say where each operator stands, as the log has it."""
    found = status(pipeline.graph(), LOG)
    assert found is not None
    yield f"in the log, run {found.run_id}:"
    for operator in found.operators:
        for port, last in operator.acknowledged.items() or operator.sent.items():
            verb = "acknowledged" if port in operator.acknowledged else "sent"
            yield f"    {operator.operator} has {verb} {last} events, in incarnation {operator.incarnation}"


def compare(expected: Mapping[str, Any]) -> int:
    """Print the totals side by side; returns the exit code."""
    per_100, hourly = totals.in_tables()
    by_item, by_hour = totals.add(expected["item_state"]), totals.add(expected["hour_item_state"])
    columns = [totals.by_state(sums) for sums in (per_100, hourly, by_item)]
    print(f"\n  {'state':8}{'table per_100':>18}{'table hourly':>18}{'plain Spark SQL':>18}")
    for state in sorted(set().union(*columns)):
        found = [column.get(state) for column in columns]
        verdict = "" if len(set(found)) == 1 else "  DIFFERENT"
        print(f"  {state[0]:8}" + "".join(f"{money or 0:>18,}" for money in found) + verdict)
    print(f"  {'all':8}" + "".join(f"{sum(column.values()):>18,}" for column in columns) + "\n")
    if per_100 != by_item or hourly != by_hour:
        print("The tables and plain Spark SQL differ.")
        return 1
    print(f"Equal to the cent: {len(by_item)} totals by item and state, {len(by_hour):,} by hour, item and state.")
    print(
        f"The log and the tables stay in {Path('examples/sales', DATA)} until the next demonstration or `make clean`."
    )
    say()
    say("done")
    return 0


# The process that is killed.


@contextmanager
def temporary_directory() -> Iterator[str]:
    """Make a directory for what Spark leaves behind when it is killed."""
    # Spark makes sockets in it, whose paths must be short.
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) < 40 else "/tmp"
    directory = tempfile.mkdtemp(prefix="clew-demo-", dir=place)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def driver(temporary: str, environment: Mapping[str, str], *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start driver.py in a process group of its own, with Spark's driver in it; none of it outlives the block."""
    clean = {name: value for name, value in os.environ.items() if name != "CLEW_FAULTS"}
    clean |= {"TMPDIR": temporary, "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}", **environment}
    with open(Path(DATA, "driver.log"), "ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "driver.py", LOG, *arguments],
            env=clean, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def reports(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    """Yield what the driver says, line by line, until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def tail() -> str:
    return "\n".join(Path(DATA, "driver.log").read_text(errors="replace").splitlines()[-20:])


if __name__ == "__main__":
    sys.exit(main())
