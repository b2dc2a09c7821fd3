"""How a verdict is written: one word with the smallest explanation, as text and as JSON, and its exit code."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from clew.app.terminal import FAILED, UNDECIDED
from clew.model.certificate import Verdict

_CODES = {"explained": 0, "not explained": FAILED, "undecided": UNDECIDED}


def exit_code(verdict: Verdict) -> int:
    """Return 0 for what is explained, 1 for what is not, 4 for what cannot be decided."""
    return _CODES[verdict.word]


def print_verdict(verdict: Verdict) -> None:
    """Write the verdict with the first finding, how many more there are, and what was gone through, on stdout."""
    findings = verdict.ranked()
    why = str(findings[0]) if findings else "a run without failures could have left what is there"
    typer.echo(f"{verdict.word}: {why}")
    if len(findings) > 1:
        more = len(findings) - 1
        typer.echo(f"and {more} more finding{'s' if more > 1 else ''}, which --json lists")
    gone_through = ", ".join(f"{number:,} {what}" for what, number in verdict.counts.items() if number)
    if verdict.word == "explained" and verdict.counted:
        told = ", ".join(verdict.counted)
        typer.echo(f"counted, not computed again: Output Sets of {told}, not declared deterministic")
    if verdict.word == "explained" and verdict.as_logged:
        told = ", ".join(verdict.as_logged)
        typer.echo(f"taken as logged: Input Sets of {told}, which decides on them anew each time it is asked")
    if gone_through:
        typer.echo(f"gone through: {gone_through}")


def as_mapping(verdict: Verdict) -> Mapping[str, Any]:
    """Return a verdict as JSON has it."""
    return {
        "verdict": verdict.word,
        "findings": [asdict(finding) for finding in verdict.ranked()],
        "counts": verdict.counts,
        "counted": verdict.counted,
        "as_logged": verdict.as_logged,
    }
