"""From declarations to courses: what an operator's windows mean."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from clew.model.certificate import RAISED, Certificate, Finding, Mistake, undecided
from clew.model.times import IntervalCourse, SessionCourse, groups_of, times_of
from clew.model.windows import (
    BatchCourse,
    CountByCourse,
    CountCourse,
    Course,
    EachCourse,
    EveryCourse,
    GeneralCourse,
    Label,
    Records,
)
from clew.pipeline.graph import OperatorSpec
from clew.pipeline.operators import LateRecords
from clew.pipeline.sessions import Session
from clew.pipeline.timewindows import Sliding, Tumbling
from clew.pipeline.windows import Batch, Count, Each, Every, Window


def courses(spec: OperatorSpec) -> dict[str, Course]:
    """Return the courses of an operator by function; a general operator has one for all its functions, named "".

    Raises Mistake where a window is none that the model knows, or a general operator has no state to begin with.
    """
    if spec.general is not None:
        try:
            return {"": GeneralCourse(spec.general)}
        except RAISED as error:
            raise Mistake(undecided(spec.name, f"its initial() fails: {type(error).__name__}: {error}")) from error
    if not spec.functions:
        return {"write": BatchCourse()}
    ports = tuple(spec.inputs)
    windows = {function.name: function.window for function in spec.functions}
    own = {name: window for name, window in windows.items() if not isinstance(window, LateRecords)}
    return {name: _course(spec.name, window, ports) for name, window in own.items()}


def late_functions(spec: OperatorSpec) -> dict[str, str]:
    """Return, by the function that records are late for, the one that passes them on."""
    functions = spec.functions if spec.general is None else ()
    return {
        main.name: late.name
        for late in functions
        if isinstance(late.window, LateRecords)
        for main in functions
        if main.window is late.window.of
    }


def label_of(spec: OperatorSpec, course: str, key: Any) -> Label:
    """Return the label of a key of a course."""
    if course or spec.general is None:
        return course, key
    names = spec.general.functions
    return (key[0], key[1]) if len(names) > 1 else (names[0], key)


def _course(operator: str, window: Window, ports: Sequence[str]) -> Course:
    match window:
        case Each():
            return EachCourse()
        case Batch():
            return BatchCourse()
        case Every():
            return EveryCourse()
        case Count(size):
            return CountByCourse(size, window.columns) if window.columns else CountCourse(size)
        case Tumbling() | Sliding():
            return IntervalCourse(window, ports)
        case Session():
            return SessionCourse(window, ports)
    fact = f"its window {type(window).__name__} has no meaning in the model; write its course in clew/model/windows.py"
    raise Mistake(undecided(operator, fact))


def of_window(
    window: Window,
    events: Sequence[tuple[str, int, pa.Table]],
    schema: pa.Schema,
    key: Any,
    records: Records | None,
    state: Any,
) -> pa.Table:
    """Return the records that a function sees of an Input Set on one port: its own, with the bounds of its window."""
    tables = [table if records is None else _places(table, records[port, number]) for port, number, table in events]
    table = pa.concat_tables(tables or [schema.empty_table()])
    if isinstance(window, Session):
        return _bounded(window, table, state["from"], state["to"] + window.pause)
    if not isinstance(window, Tumbling | Sliding):
        return table
    start, group = key
    placed = zip(times_of(window, table), groups_of(window, table))
    within = [i for i, (time, own) in enumerate(placed) if 0 <= time - start < window.length and own == group]
    return _bounded(window, _places(table, within), start, start + window.length)


def _places(table: pa.Table, places: Sequence[int]) -> pa.Table:
    return table.take(pa.array(places, pa.int64()))


def _bounded(window: Tumbling | Sliding | Session, table: pa.Table, start: int, end: int) -> pa.Table:
    kind = table.schema.field(window.on).type
    bound = pa.int64() if pa.types.is_integer(kind) else pa.timestamp("us", getattr(kind, "tz", None))
    # Bounds that the records have from windows before become inner ones, the inner ones inner inner ones.
    inner = re.compile("(inner_)*window_(start|end)")
    names = set(table.column_names)
    table = table.rename_columns(
        [f"inner_{name}" if inner.fullmatch(name) and _is_pushed(name, names) else name for name in table.column_names]
    )
    for name, at in (("window_start", start), ("window_end", end)):
        table = table.append_column(name, pa.array([at] * table.num_rows, pa.int64()).cast(bound))
    return table


def _is_pushed(name: str, names: Collection[str]) -> bool:
    """Say whether all columns are there that push this one on: `window_start` does, and each that it pushes."""
    return name in names and (not name.startswith("inner_") or _is_pushed(name.removeprefix("inner_"), names))


def is_of_code(spec: OperatorSpec, certificate: Certificate) -> bool:
    """Say whether an operator's code is still what the run had last, as far as the log says."""
    return certificate.changed(spec.name).code in (None, spec.version["code"])


def as_of_code(spec: OperatorSpec, certificate: Certificate, finding: Finding) -> Finding:
    """Return a finding for what it is worth where code gives something else than what was logged.

    If the code is another one than the run had, that may be why.
    """
    if finding.weight != "wrong" or is_of_code(spec, certificate):
        return finding
    return replace(finding, weight="undecided", fact=f"{finding.fact}; its code is another one than the run had")
