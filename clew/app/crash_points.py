"""`clew crash-points`."""

import typer
from rich.table import Table
from rich.text import Text

from clew.app.target import Json
from clew.app.terminal import print_json, results
from clew.faultpoint import POINTS

_HOW = """
Arm them through the environment, for the next process:

  CLEW_FAULTS='point[@operator][#nth][:action],...' clew run FILE

  @operator  only in this operator (default: in any)
  #nth       the nth time it is reached (default: 1); each fault fires once
  :action    kill (kill -9 of the process, the default), raise, freeze (SIGSTOP) or sleep=SECONDS

For example, die while the second turn of the operator paid is being committed:

  CLEW_FAULTS='inside-commit@paid#2' clew run sales.py

and run again without CLEW_FAULTS: the run resumes. CLEW_FAULTS_FIRED=PATH appends each fault that fired to a file."""


def crash_points(as_json: Json = False) -> None:
    """List the named places where a run can be made to die, and how to arm them."""
    if as_json:
        print_json([{"point": point, "where": where} for point, where in POINTS.items()])
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for point, where in POINTS.items():
        table.add_row(Text(point, style="bold"), where)
    results().print(table)
    typer.echo(_HOW)
