"""Traces of runs that failed and were resumed are accepted; a trace of something taken back is not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clew.errors import RunStopped
from clew.faultpoint import arm
from clew.model.read import opened_log
from clew.model.retraction import check_trace
from clew.run import Policy, run
from clew.trace import TraceStep, load
from tests.model.pipelines import each, general
from tests.model.runs import Finished, explained, finished, only


@pytest.fixture
def traced(tmp_path: Path) -> Finished:
    return finished(each(tmp_path), tmp_path, trace=str(tmp_path / "trace.jsonl"))


def steps(made: Finished) -> list[TraceStep]:
    return list(load(str(made.directory / "trace.jsonl")))


def test_the_trace_of_a_run_is_accepted(traced: Finished) -> None:
    assert explained(traced.verify(steps(traced)))


@pytest.mark.parametrize("make", [each, general])
@pytest.mark.parametrize("point", ["after-write", "after-commit", "before-write", "after-source-commit"])
def test_the_trace_of_a_run_that_failed_and_was_resumed_is_accepted(tmp_path: Path, make: Any, point: str) -> None:
    pipeline, trace = make(tmp_path), str(tmp_path / "trace.jsonl")
    made = Finished(pipeline, tmp_path)
    for nth in (2, 1):
        (fault,) = arm(f"{point}#{nth}:raise")
        try:
            with pytest.raises(RunStopped):
                run(
                    pipeline, log=made.url, bodies=str(made.bodies), engine="inline", trace=trace,
                    policy=Policy(give_up_after=1),
                )  # fmt: skip
        finally:
            arm()
        assert fault.fired
    finished(pipeline, tmp_path, trace=trace)
    told = steps(made)
    assert [step.kind for step in told].count("started") == 3
    assert explained(made.verify(told))
    # Who listened only to the last part has nothing to complain of either.
    last = max(index for index, step in enumerate(told) if step.kind == "started")
    assert explained(made.verify(told[last:]))


def doctored(told: list[TraceStep], kind: str, field: str, edit: Any) -> Iterator[TraceStep]:
    """Yield a trace in which the last step of a kind that tells of `field` is followed by an edited one."""
    last = max(index for index, step in enumerate(told) if step.kind == kind and step.what.get(field))
    yield from told[: last + 1]
    yield replace(told[last], what=edit(told[last].what))
    yield from told[last + 1 :]


def test_an_event_logged_twice_was_taken_back(traced: Finished) -> None:
    def again(what: dict[str, Any]) -> dict[str, Any]:
        ((port, number, events, digest),) = what["sent"]
        return {"sent": [[port, number, events, digest ^ 1]]}

    found = only(traced.verify(doctored(steps(traced), "committed", "sent", again)))
    assert found.fact == f"event {found.event} was logged twice: what was seen of it was taken back"


def test_an_event_logged_with_another_content_was_taken_back(traced: Finished) -> None:
    told = steps(traced)
    index, step = next((i, s) for i, s in enumerate(told) if s.operator == "doubled" and s.what.get("sent"))
    ((port, number, events, digest),) = step.what["sent"]
    told[index] = replace(step, what={**step.what, "sent": [[port, number, events, digest ^ 1]]})
    found = only(traced.verify(told))
    assert (found.operator, found.event) == ("doubled", f"doubled.out#{number}")
    assert "are not those that were logged first" in found.fact


def test_a_write_that_was_never_logged_could_not_be_repeated(traced: Finished) -> None:
    def next_write(what: dict[str, Any]) -> dict[str, Any]:
        return {**what, "first": what["first"] + 1000}

    told = steps(traced)
    for trace in (told, [step for step in told if "writes" not in step.what]):
        found = only(traced.verify(doctored(trace, "written", "connection", next_write)))
        assert found.operator == "doubled_sink"
        assert "was performed and not logged before: nobody could repeat it" in found.fact


def test_a_write_that_another_process_performs_was_logged_before(traced: Finished) -> None:
    """A process that is killed between its commit and the step that tells of it leaves no such step."""
    told = steps(traced)
    logging = [index for index, step in enumerate(told) if step.what.get("writes")]
    assert len(logging) > 2
    for killed in logging:
        assert explained(traced.verify([*told[:killed], *told[killed + 1 :]]))


def test_a_commit_may_be_told_late_by_a_process_that_was_taken_over(traced: Finished) -> None:
    """Frozen between its commit and the step that tells of it, it tells after the one that took over."""
    told = steps(traced)
    first = next(index for index, step in enumerate(told) if step.what.get("writes") and step.what.get("sent") is None)
    taken_over = replace(told[first], kind="recovering", what={"incarnation": told[first].what["incarnation"] + 1})
    later = [
        replace(step, what={**step.what, "incarnation": step.what["incarnation"] + 1})
        if step.operator == told[first].operator and "incarnation" in step.what
        else step
        for step in told[first + 1 :]
    ]
    assert explained(traced.verify([*told[:first], taken_over, *later, told[first]]))


def test_a_write_performed_before_it_is_logged_is_found_also_where_it_is_the_first(traced: Finished) -> None:
    told = steps(traced)
    written = next(index for index, step in enumerate(told) if step.kind == "written")
    assert told[written].what["first"] == 1
    logged = next(index for index, step in enumerate(told) if step.what.get("writes"))
    assert logged < written
    early = [*told[:logged], told[written], *told[logged:written], *told[written + 1 :]]
    found = only(traced.verify(early))
    assert found.operator == "doubled_sink"
    assert "#1 was performed and not logged before: nobody could repeat it" in found.fact


def test_a_write_action_logged_with_another_content_was_taken_back(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path, trace=str(tmp_path / "trace.jsonl"))
    told = steps(made)
    assert explained(made.verify(told))
    index, step = next((i, s) for i, s in enumerate(told) if s.operator == "rates" and s.what.get("writes"))
    ((name, number, writes, digest),) = step.what["writes"]
    told[index] = replace(step, what={**step.what, "writes": [[name, number, writes, digest ^ 1]]})
    found = only(made.verify(told))
    assert found.operator == "rates"
    assert f"write actions rates.report#{number} to #" in found.fact


def test_a_write_action_that_was_logged_and_is_no_longer_was_taken_back(traced: Finished) -> None:
    for beyond, writes in ((0, 1), (0, 3), (2, 1)):

        def more(what: dict[str, Any], beyond: int = beyond, writes: int = writes) -> dict[str, Any]:
            ((name, number, count, digest),) = what["writes"]
            return {**what, "writes": [[name, number + count + beyond, writes, digest]]}

        ((last,),) = traced.ask("SELECT max(number) FROM write_action WHERE operator = 'doubled_sink'")
        found = only(traced.verify(doctored(steps(traced), "committed", "writes", more)))
        assert (found.operator, found.fact) == (
            "doubled_sink",
            f"write action doubled_sink.out#{last + 1} was logged, and the log does not hold it: it was taken back",
        )


def test_write_actions_that_were_collected_in_part_were_not_taken_back(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path, trace=str(tmp_path / "trace.jsonl"))
    step = next(step for step in steps(made) if step.operator == "rates" and step.what.get("writes"))
    ((name, number, writes, _),) = step.what["writes"]
    assert writes > 1
    made.change(
        f"DELETE FROM write_action WHERE operator = 'rates' AND number <= {number}",
        f"INSERT INTO collected VALUES ('rates', 'writes:{name}', {number})",
    )
    with opened_log(made.url, made.pipeline.name, str(made.bodies)) as log:
        assert check_trace(log, steps(made)) == []


def test_steps_of_another_run_in_the_same_file_are_passed_over(traced: Finished, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    finished(each(other), other, trace=str(tmp_path / "trace.jsonl"))
    told = steps(traced)
    assert [step.kind for step in told].count("started") == 2
    assert explained(traced.verify(told))


def test_a_trace_of_another_run_alone_says_nothing(traced: Finished, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = finished(each(other), other, trace=str(other / "trace.jsonl"))
    found = only(traced.verify(steps(elsewhere)), "undecided")
    assert "the trace tells nothing of run " in found.fact
