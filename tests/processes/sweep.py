"""Tries many cases of one kind, several at once, and judges by what the sinks hold in the end."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from clew.ids import Port
from tests.processes.cases import Case
from tests.processes.nursery import Nursery
from tests.processes.place import Place, Rows, place

#: The ports of values that never come again, and the sinks that hold them.
PORTS = {"tag": ("tags", "tag_files"), "clock": ("clocks",), "prices": ("ledger", "price_files")}

Sinks = dict[str, Rows]


@dataclass(frozen=True)
class Trial:
    """One case in a place of its own."""

    case: Case
    where: Place
    nursery: Nursery
    #: What the sinks hold after a run without failures, of a pipeline that always gives the same.
    expected: Sinks
    #: What the log was seen to hold, by port and key, of values that never come again.
    logged: dict[str, dict[str, str]] = field(default_factory=lambda: {port: {} for port in PORTS})

    def look(self) -> None:
        """Remember what is logged: it must stay what it is."""
        if self.where.pipeline == "sales":
            return
        for port, tokens in self.logged.items():
            for row in self.where.logged(Port(port, "out")):
                key = str(row["key"])
                assert tokens.setdefault(key, row["token"]) == row["token"], f"{port} {key} was logged anew"

    def sinks(self) -> Sinks:
        return held(self.where)

    def judge(self) -> Sinks:
        """Hold the sinks against what they must hold, and the trace against the log; returns what they hold."""
        found = self.sinks()
        assert not (taken_back := self.where.retracted()), f"{taken_back[0]}"
        if self.where.pipeline == "drawn":
            _judge_drawn(found, self.logged)
            return found
        for sink, rows in self.expected.items():
            assert found[sink] == rows, f"{sink} lost {rows - found[sink]} and has too much {found[sink] - rows}"
        return found


class Sweep:
    """A database, or the lack of one, and processes to run pipelines in."""

    def __init__(self, nurseries: Sequence[Nursery], directory: Path, server: str | None) -> None:
        self._nurseries = nurseries
        self._directory = directory
        self._server = server

    @property
    def on_a_server(self) -> bool:
        return self._server is not None

    def each(self, cases: Iterable[Case], try_case: Callable[[Trial], None]) -> None:
        """Try all cases, as many at once as there are nurseries; report all that fail."""
        cases = list(cases)
        expected = {pipeline: self._undisturbed(pipeline) for pipeline in {case.pipeline for case in cases}}
        free: Queue[Nursery] = Queue()
        for nursery in self._nurseries:
            free.put(nursery)

        def one(case: Case) -> str:
            nursery = free.get()
            try:
                with self.place(case.pipeline) as where:
                    try_case(Trial(case, where, nursery, expected[case.pipeline]))
            except AssertionError as error:
                return f"{case}: {error}"
            finally:
                free.put(nursery)
            return ""

        with ThreadPoolExecutor(len(self._nurseries)) as pool:
            failures = [failure for failure in pool.map(one, cases) if failure]
        assert cases
        assert not failures, f"{len(failures)} of {len(cases)} cases:\n" + "\n".join(failures)

    @contextmanager
    def place(self, pipeline: str) -> Iterator[Place]:
        with place(pipeline, self._directory, self._server) as where:
            yield where

    def _undisturbed(self, pipeline: str) -> Sinks:
        """Return what a run without failures leaves behind."""
        with self.place(pipeline) as where:
            where.finish(self._nurseries[0])
            sinks = held(where)
        assert all(sinks.values())
        assert sum(sum(rows.values()) for rows in sinks.values()) > 30
        return sinks


def held(where: Place) -> Sinks:
    """Read what all sinks of a place hold."""
    if where.pipeline == "sales":
        return {"totals": where.table("totals"), "hourly": where.table("hourly"), "paid": where.files("paid")}
    tables = {name: where.table(name) for name in ("tags", "clocks", "ledger", "messages")}
    return {**tables, "tag_files": where.files("tags"), "price_files": where.files("prices")}


def _judge_drawn(found: Sinks, logged: dict[str, dict[str, str]]) -> None:
    """Each Output Set is the one first logged, or one that nobody had seen before: never a mix, never a second one."""
    keys = {"tag": [str(n) for n in range(12)], "clock": ["0", "5", "10"], "prices": [str(n) for n in range(6)]}
    for port, sinks in PORTS.items():
        seen = [_tokens(found[sink], 2 if port == "tag" else 1) for sink in sinks]
        for sink, tokens in zip(sinks, seen):
            assert sorted(tokens) == sorted(keys[port]), f"{sink} holds the Output Sets {sorted(tokens)}"
            regenerated = {key: token for key, token in logged[port].items() if tokens[key] != token}
            assert not regenerated, f"{sink} does not hold what was first logged for {regenerated}"
        assert all(tokens == seen[0] for tokens in seen), f"the sinks of {port} hold different computations"
    messages = found["messages"]
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
