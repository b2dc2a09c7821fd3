"""Real processes, real kill -9, at every crash point, on SQLite and on PostgreSQL."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from clew.faultpoint import POINTS
from clew.ids import Port
from tests.postgres_server import PostgresServer
from tests.processes.nursery import Nursery
from tests.processes.place import Place, Rows, place

#: What dies, in order: a case is one run per fault, and then one without.
Case = tuple[str, ...]

TURN = ("after-gather", "after-assign", "after-generate", "inside-commit", "after-commit", "after-wake")
WRITE = ("before-write", "after-write", "after-write-done")
SQL = ("sink-before-commit", "sink-after-commit")
FILE = ("sink-before-rename", "sink-after-commit")
END = ("before-flush", "after-end")
AGAIN = ("after-take-over", "after-resend", "after-restore", "after-recovered-input", "before-running")


def _cases(operator: str, points: Sequence[str], nth: int) -> list[Case]:
    return [(f"{point}@{operator}#{nth}",) for point in points]


def _twice(first: str, operator: str, points: Sequence[str]) -> list[Case]:
    """Die in the middle of a run, and again while recovering from that."""
    return [(first, f"{point}@{operator}#1") for point in points]


SALES: list[Case] = [
    *_cases("orders", ("before-action-logged", "after-action-logged", "after-end"), 1),
    *_cases("orders", ("after-source-read", "after-source-commit", "inside-commit"), 2),
    *_cases("paid", ("after-assign", "inside-commit", "after-wake"), 2),
    *_cases("paid", END, 1),
    *_cases("totals", TURN, 2),
    *_cases("totals", END, 1),
    *_cases("hourly", ("after-generate", "inside-commit", "after-commit"), 3),
    *_cases("hourly", END, 1),
    *_cases("totals_sink", (*TURN, *WRITE, *SQL), 2),
    *_cases("totals_sink", END, 1),
    *_cases("hourly_sink", SQL, 2),
    *_cases("paid_sink", (*WRITE, *FILE), 2),
    *_twice("after-source-commit@orders#3", "orders", ("after-take-over", "after-resend", "after-source-restore")),
    *_twice("after-generate@totals#2", "totals", AGAIN),
    *_twice("before-write@totals_sink#2", "totals_sink", ("after-restore", "before-write-check", *WRITE, *SQL)),
    *_twice("sink-after-commit@hourly_sink#1", "hourly_sink", ("before-write-check", "after-write-done")),
    *_twice("sink-after-commit@paid_sink#2", "paid_sink", ("before-write-check", "after-write-done")),
    ("before-collect#2",),
    ("after-collect#2",),
]
DRAWN: list[Case] = [
    *_cases("messages", ("before-action-logged", "after-action-logged", "after-effect-stored"), 1),
    *_cases("messages", ("after-action-complete", "before-effect-dropped", "after-effect-dropped", "after-end"), 1),
    *_cases("messages", ("after-source-read", "after-source-commit"), 2),
    *_cases("tag", TURN, 2),
    *_cases("tag", END, 1),
    *_cases("clock", ("after-generate", "inside-commit", "after-commit", "after-wake"), 2),
    *_cases("clock", END, 1),
    *_cases("prices", (*TURN, *WRITE, *SQL), 2),
    *_cases("prices", END, 1),
    *_cases("tags", (*WRITE, *SQL), 2),
    *_cases("tag_files", (*WRITE, *FILE), 2),
    *_twice("after-effect-stored@messages#1", "messages", ("after-take-over", "after-source-restore")),
    *_twice("after-source-commit@messages#2", "messages", ("after-take-over", "after-source-restore")),
    *_twice("after-generate@tag#3", "tag", AGAIN),
    *_twice("before-write@prices#2", "prices", ("after-restore", "before-write-check", *WRITE, *SQL)),
]


#: Operators of a kind that others have too, or whose outside is no database: SQLite alone covers them.
ALIKE = ("paid", "hourly", "hourly_sink", "paid_sink", "clock", "tags", "tag_files")


def _on(server: str | None, cases: Sequence[Case]) -> list[Case]:
    """Return the cases to try on a backend; each crash point and kind of operator is among them."""
    return [case for case in cases if server is None or not any(f"@{name}#" in case[0] for name in ALIKE)]


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Where the log and the tables are: on SQLite, or on a PostgreSQL server."""
    if request.param == "sqlite":
        return None
    running: PostgresServer = request.getfixturevalue("postgres_server")
    return running.url


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    both = [Nursery(), Nursery()]
    yield both
    for nursery in both:
        nursery.close()


def _each(cases: Sequence[Case], nurseries: Sequence[Nursery], check: Callable[[Case, Nursery], None]) -> None:
    """Check all cases, two at once; report all that fail."""
    free: Queue[Nursery] = Queue()
    for nursery in nurseries:
        free.put(nursery)

    def one(case: Case) -> str:
        nursery = free.get()
        try:
            check(case, nursery)
        except AssertionError as error:
            return f"{' then '.join(case)}: {error}"
        finally:
            free.put(nursery)
        return ""

    with ThreadPoolExecutor(len(nurseries)) as pool:
        failures = [failure for failure in pool.map(one, cases) if failure]
    assert not failures, f"{len(failures)} of {len(cases)} cases:\n" + "\n".join(failures)


def _die(where: Place, case: Case, nursery: Nursery, between: Callable[[], Any] = lambda: None) -> None:
    """Run once per fault of the case; each run dies by SIGKILL, at that fault and at no other place."""
    for fault in case:
        collect_every = 0.01 if "collect" in fault else None
        ending = nursery.run(where.job(f"{fault}:kill", collect_every=collect_every))
        assert ending.fired == (fault.partition("#")[0] if "@" in fault else f"{fault.partition('#')[0]}@",), (
            f"the fault did not fire: {ending}"
        )
        assert ending.killed, f"it was to die by SIGKILL: {ending}"
        between()


def test_sinks_hold_what_a_run_without_failures_leaves(
    server: str | None, nurseries: list[Nursery], tmp_path: Path
) -> None:
    with place("sales", tmp_path, server) as undisturbed:
        undisturbed.finish(nurseries[0])
        expected = _sales(undisturbed)
    assert sum(expected["paid"].values()) > 30
    assert all(expected.values())

    def check(case: Case, nursery: Nursery) -> None:
        with place("sales", tmp_path, server) as where:
            _die(where, case, nursery)
            where.finish(nursery)
            found = _sales(where)
            for sink, rows in expected.items():
                assert found[sink] == rows, f"{sink} lost {rows - found[sink]} and has too much {found[sink] - rows}"

    _each(_on(server, SALES), nurseries, check)


def _sales(where: Place) -> dict[str, Rows]:
    return {"totals": where.table("totals"), "hourly": where.table("hourly"), "paid": where.files("paid")}


#: The ports of values that never come again, and the sinks that hold them.
PORTS = {"tag": ("tags", "tag_files"), "clock": ("clocks",), "prices": ("ledger", "price_files")}


def test_each_output_set_is_the_one_first_logged_or_one_new_one(
    server: str | None, nurseries: list[Nursery], tmp_path: Path
) -> None:
    def check(case: Case, nursery: Nursery) -> None:
        with place("drawn", tmp_path, server) as where:
            logged: dict[str, dict[str, str]] = {port: {} for port in PORTS}

            def look() -> None:
                for port, tokens in logged.items():
                    for row in where.logged(Port(port, "out")):
                        key = str(row["key"])
                        assert tokens.setdefault(key, row["token"]) == row["token"], f"{port} {key} was logged anew"

            _die(where, case, nursery, look)
            where.finish(nursery)
            _judge_drawn(where, logged)

    _each(_on(server, DRAWN), nurseries, check)


def _judge_drawn(where: Place, logged: dict[str, dict[str, str]]) -> None:
    keys = {"tag": [str(n) for n in range(12)], "clock": ["0", "5", "10"], "prices": [str(n) for n in range(6)]}
    held = {name: where.table(name) for name in ("tags", "clocks", "ledger", "messages")}
    held |= {"tag_files": where.files("tags"), "price_files": where.files("prices")}
    for port, sinks in PORTS.items():
        seen = [_tokens(held[sink], 2 if port == "tag" else 1) for sink in sinks]
        for sink, tokens in zip(sinks, seen):
            assert sorted(tokens) == sorted(keys[port]), f"{sink} holds the Output Sets {sorted(tokens)}"
            regenerated = {key: token for key, token in logged[port].items() if tokens[key] != token}
            assert not regenerated, f"{sink} does not hold what was first logged for {regenerated}"
        assert all(tokens == seen[0] for tokens in seen), f"the sinks of {port} hold different computations"
    messages = held["messages"]
    assert Counter(row[0] for row in messages.elements()) == Counter(str(n) for n in range(12))
    assert len({row[1] for row in messages}) == 1, f"messages come from several readings: {messages}"


def _tokens(rows: Rows, parts: int) -> dict[str, str]:
    """Return the token per key; a key with two tokens, or with a wrong number of records, is a mix."""
    tokens: dict[str, set[str]] = {}
    for row in rows.elements():
        tokens.setdefault(row[0], set()).add(row[-1])
    count = Counter(row[0] for row in rows.elements())
    assert all(len(found) == 1 for found in tokens.values()), f"two computations in one Output Set: {tokens}"
    assert set(count.values()) == {parts}, f"records per Output Set: {count}"
    return {key: found.pop() for key, found in tokens.items()}


def test_every_crash_point_is_killed_at_in_some_case() -> None:
    covered = {fault.partition("@")[0].partition("#")[0] for case in (*SALES, *DRAWN) for fault in case}
    assert sorted(set(POINTS) - covered) == []
