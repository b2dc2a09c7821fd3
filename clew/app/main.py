"""The command line: `clew`."""

import typer

from clew.app.chaos import chaos
from clew.app.check import check
from clew.app.crash_points import crash_points
from clew.app.doctor import doctor
from clew.app.engine import engine
from clew.app.gc import gc
from clew.app.graph import graph
from clew.app.group import group
from clew.app.init import init
from clew.app.quarantine import quarantine
from clew.app.replay import diff, replay
from clew.app.run import run
from clew.app.shown_settings import settings
from clew.app.status import status
from clew.app.stop import stop
from clew.app.trace import trace
from clew.app.verify import verify
from clew.app.version import version

app = typer.Typer(
    help="Data pipelines on Apache Spark that can retrace their steps.",
    no_args_is_help=True,
    add_completion=False,
    # Failures are explained by the commands themselves.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    init, doctor, run, group, engine, stop, check, graph, status, verify, replay, diff, gc, chaos, settings, version,
):  # fmt: skip
    app.command()(command)
app.command("crash-points")(crash_points)
app.add_typer(quarantine, name="quarantine")
app.add_typer(trace, name="trace")


@app.callback()
def main() -> None:
    """Data pipelines on Apache Spark that can retrace their steps."""


if __name__ == "__main__":
    app()
