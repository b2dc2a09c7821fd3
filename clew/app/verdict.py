"""How a verdict is written: findings and one word, as text and as JSON, and its exit code."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from clew.app.terminal import FAILED
from clew.model.certificate import Verdict

#: The exit code of what cannot be decided.
UNDECIDED = 4
_CODES = {"explained": 0, "not explained": FAILED, "undecided": UNDECIDED}


def exit_code(verdict: Verdict) -> int:
    """Return 0 for what is explained, 1 for what is not, 4 for what cannot be decided."""
    return _CODES[verdict.word]


def print_verdict(verdict: Verdict) -> None:
    """Write what was found, then what it comes to, on stdout."""
    for finding in verdict.findings:
        typer.echo(f"{finding.weight}: {finding}")
    gone_through = ", ".join(f"{number:,} {what}" for what, number in verdict.counts.items())
    typer.echo(f"{verdict.word}: {gone_through}" if gone_through else verdict.word)


def as_mapping(verdict: Verdict) -> Mapping[str, Any]:
    """Return a verdict as JSON has it."""
    findings = [asdict(finding) for finding in verdict.findings]
    return {"verdict": verdict.word, "findings": findings, "counts": verdict.counts}
