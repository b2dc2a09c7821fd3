"""What the judge does grows as the run does: work is counted, for a run and for one of twice the size."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
import pytest

from clew import Operator, Session, Tumbling
from clew.model.replay import _Open
from clew.model.times import IntervalCourse, SessionCourse, _OfKey, _Sitting
from clew.model.windows import CountByCourse, Course, Event, GeneralCourse
from clew.pipeline.operators import Context, InputSet
from clew.pipeline.windows import Header

FAR = 10**9


class Counted:
    """Counts how often anything is looked at: keys are compared, or their hashes asked for."""

    looks = 0


class Key(str):
    """A key that is counted when it is looked at."""

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return super().__eq__(other)


def one_event(course: Course, size: int, facts: Callable[[int], Any]) -> None:
    """Let a course take one event of so many records."""
    course.take(Event("in", 1, size, 0, [facts(place) for place in range(size)]), ())
    course.absorbed()
    course.complete()


def many_events(course: Course, size: int, facts: Callable[[int], Any]) -> None:
    """Let a course take so many events of one record."""
    for number in range(1, size + 1):
        course.take(Event("in", number, 1, 0, [facts(number)]), ())
        course.absorbed()
        course.complete()


def sessions(pause: int, **rest: Any) -> SessionCourse:
    return SessionCourse(Session(pause, on="t", by="k", **rest), ("in",))


def intervals(**rest: Any) -> IntervalCourse:
    return IntervalCourse(Tumbling(1, on="t", **rest), ("in",))


class Singles(Operator):
    """Every event alone, at the end."""

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        return [Key(event.number)]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        # It is not copied for every event: what a list holds nobody can count.
        assert not isinstance(opened, list)
        return ()

    def flush(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return list(opened)

    def generate(self, input_set: InputSet, context: Context) -> Any:
        return pa.table({})


def of_general(size: int) -> None:
    course = GeneralCourse(Singles())
    many_events(course, size, lambda number: None)
    assert len(course.rest()) == size
    assert course.rest() == []


def late_of_one_key(size: int) -> None:
    """One session far ahead stays open, so that all that follow of the key are late."""

    class Late(list[Any]):
        def __getitem__(self, at: Any) -> Any:
            Counted.looks += 1
            return super().__getitem__(at)

    own = _OfKey()
    own.add(slice(0, 0), _Sitting(("k", 1, FAR), 1, FAR, FAR))
    for number in range(2, size + 2):
        own.leave_out(Late([number, 3 * number, 3 * number]))
    assert len(own.left_out) == size


def absorbing(size: int) -> None:
    """One Input Set takes in another of as many events, of which each second is its own too."""
    one, other = _Open(1), _Open(2)
    for number in range(1, size + 1):
        one.add(Key("in"), 2 * number)
        other.add(Key("in"), number)
    assert len(one.absorb(other)) == size - size // 2


WORK: dict[str, Callable[[int], None]] = {
    "keys of one event, counted": lambda size: one_event(CountByCourse(3, ("k",)), size, lambda n: Key(n)),
    "keys of one event, in sessions": lambda size: one_event(sessions(10), size, lambda n: (n, Key(n))),
    "sessions of many keys": lambda size: many_events(sessions(FAR), size, lambda n: (n, Key(n))),
    "sessions of one key": lambda size: many_events(sessions(2, lateness=FAR), size, lambda n: (3 * n, Key("k"))),
    "late records of one key with an open session": lambda size: late_of_one_key(size),
    "intervals": lambda size: many_events(intervals(lateness=FAR), size, lambda n: (n, 0)),
    "keys of a general operator": of_general,
    "Input Sets that become one": absorbing,
}


@pytest.mark.parametrize("name", WORK)
def test_work_grows_as_the_run_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for course in (SessionCourse, IntervalCourse):
        monkeypatch.setattr(course, "_fires", _counting(course._fires))
    few, many = (_looks(WORK[name], size) for size in (200, 400))
    assert many <= 3 * few


def _looks(work: Callable[[int], None], size: int) -> int:
    before = Counted.looks
    work(size)
    assert Counted.looks - before >= size, "nothing was counted"
    return Counted.looks - before


def _counting(method: Callable[..., int]) -> Callable[..., int]:
    def counted(*arguments: Any) -> int:
        Counted.looks += 1
        return method(*arguments)

    return counted
