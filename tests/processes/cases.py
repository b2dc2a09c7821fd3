"""Which crashes the sweeps try: each crash point in each kind of operator, and again while that one recovers."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from clew.faultpoint import POINTS

Mode = Literal["kill", "raise", "freeze"]
MODES: tuple[Mode, ...] = ("kill", "raise", "freeze")

#: All operators, points and modes on both databases, instead of a part of them.
SOAK = bool(os.environ.get("CLEW_SOAK"))


@dataclass(frozen=True)
class Case:
    """The crashes of one run, in order; each is written `point@operator#nth`."""

    pipeline: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pipeline}: {' then '.join(self.faults)}"

    @property
    def point(self) -> str:
        """The crash point that it is about: the last one."""
        return point_of(self.faults[-1])

    @property
    def collects(self) -> bool:
        """Whether it crashes beside the operators, in garbage collection."""
        return self.point.endswith("-collect")


def point_of(fault: str) -> str:
    return fault.partition("#")[0].partition("@")[0]


def operator_of(fault: str) -> str:
    return fault.partition("#")[0].partition("@")[2]


def mark_of(fault: str) -> str:
    """Return what a fault leaves behind when it fires."""
    return f"{point_of(fault)}@{operator_of(fault)}"


#: A kind of operator: its crash points, and which visit of each falls into the middle of a run.
Kind = Mapping[str, int]

#: Passed when an operator starts, and so in every recovery.
RECOVERY = ("after-take-over", "after-resend", "after-source-restore", "after-restore", "after-recovered-input",
            "before-running")  # fmt: skip

_START = {"after-take-over": 1, "after-resend": 1, "before-running": 1}
_TURN = {"after-gather": 2, "after-assign": 2, "after-generate": 2, "inside-commit": 2, "after-commit": 2,
         "after-wake": 2, "before-flush": 1, "after-end": 1}  # fmt: skip
_WRITE = {"before-write": 2, "after-write": 2, "after-write-done": 2}
_TABLE = {"sink-before-commit": 2, "sink-after-commit": 2}
_FILE = {"sink-before-rename": 2, "sink-after-commit": 2}

REPLAYED: Kind = {
    **_START, "after-source-restore": 1, "before-action-logged": 1, "after-action-logged": 1, "after-source-read": 2,
    "after-source-commit": 2, "inside-commit": 2, "after-end": 1,
}  # fmt: skip
OBSERVED: Kind = {
    **REPLAYED, "after-effect-stored": 1, "after-action-complete": 1, "before-effect-dropped": 1,
    "after-effect-dropped": 1,
}  # fmt: skip
MIDDLE: Kind = {**_START, "after-restore": 1, "after-recovered-input": 1, **_TURN}
TABLE: Kind = {**MIDDLE, **_WRITE, **_TABLE}
FILES: Kind = {**MIDDLE, **_WRITE, **_FILE}

OPERATORS: dict[str, dict[str, Kind]] = {
    "sales": {
        "orders": REPLAYED, "paid": MIDDLE, "totals": MIDDLE, "hourly": MIDDLE,
        "totals_sink": TABLE, "hourly_sink": TABLE, "paid_sink": FILES,
    },
    "drawn": {
        # The operator prices has a function and writes of its own.
        "messages": OBSERVED, "tag": MIDDLE, "clock": MIDDLE, "prices": TABLE,
        "messages_sink": TABLE, "tags": TABLE, "clocks": TABLE, "tag_files": FILES, "price_files": FILES,
    },
}  # fmt: skip
#: Operators of a kind that another one has too.
ALIKE = ("paid", "hourly", "hourly_sink", "clock", "messages_sink", "tags", "clocks", "price_files")
#: What is tried of those, unless all is.
_SOME = ("after-generate", "inside-commit", "after-commit", "sink-before-commit", "sink-after-commit")

#: Garbage collection stands beside the operators.
COLLECTING = [Case("sales", ("before-collect#2",)), Case("sales", ("after-collect#2",))]


def once(server: bool = False, alike: bool = True) -> list[Case]:
    """Return the cases with one crash: on SQLite for every kind of operator, on a server for every crash point.

    With `alike` some are in operators of the same kind, too.
    """
    cases = [
        Case(pipeline, (f"{point}@{operator}#{nth}",))
        for pipeline, operators in OPERATORS.items()
        for operator, kind in operators.items()
        for point, nth in kind.items()
        if SOAK or operator not in ALIKE or (alike and point in _SOME)
    ]
    if not server or SOAK:
        return [*cases, *COLLECTING]
    # What decides on a value that never comes again is tried where there are such values.
    drawn = {*_SOME, *(OBSERVED.keys() - REPLAYED.keys())}
    return one_each([*(case for case in cases if (case.pipeline == "drawn") is (case.point in drawn)), *COLLECTING])


def twice(mode: Mode, server: bool = False) -> list[Case]:
    """Return the cases with a crash in the middle of a run and one at each point of the recovery from it."""
    # On a server one source, one operator in the middle and one writer: that of a table.
    alike = () if SOAK else (*ALIKE, "tag_files", *(("paid_sink", *OPERATORS["drawn"]) if server else ()))
    return [
        Case(pipeline, (first, f"{point}@{operator}#{_again(mode, point)}"))
        for pipeline, operators in OPERATORS.items()
        for operator, kind in operators.items()
        for first, points in _recoveries(operator, kind)
        for point in points
        if operator not in alike
    ]


def _recoveries(operator: str, kind: Kind) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Yield a crash in the middle of a run, and the points that the recovery from it passes."""
    if "after-source-read" in kind:
        source = ("after-take-over", "after-resend", "after-source-restore", "before-running")
        yield f"after-source-commit@{operator}#2", source
        if kind is OBSERVED:
            yield f"after-effect-stored@{operator}#1", source
        return
    processing = ("after-take-over", "after-resend", "after-restore", "after-recovered-input", "before-running")
    if "before-write" not in kind:
        yield f"after-generate@{operator}#2", processing
        return
    performed = tuple(_TABLE) if "sink-before-commit" in kind else tuple(_FILE)
    yield f"before-write@{operator}#2", (*processing, "before-write-check", "before-write", *performed, *_AFTER)
    # Here the sink has it, so that the check finds it and it is not performed again.
    yield f"sink-after-commit@{operator}#2", ("before-write-check", "after-write-done")


_AFTER = ("after-write", "after-write-done")


def _again(mode: Mode, point: str) -> int:
    """Say which visit of a point is the one of the recovery: a killed process counts anew, another one goes on."""
    if mode != "raise" or point == "before-write-check":
        return 1
    return 3 if point == "before-write" else 2


def one_each(cases: Iterable[Case]) -> list[Case]:
    """Return each crash point once, in one operator after the other."""
    by_point: dict[str, list[Case]] = {}
    for case in cases:
        by_point.setdefault(case.point, []).append(case)
    return [found[index % len(found)] for index, found in enumerate(by_point.values())]


def uncovered(cases: Iterable[Case]) -> list[str]:
    """Return the crash points that no case is about."""
    return sorted(set(POINTS) - {case.point for case in cases})
