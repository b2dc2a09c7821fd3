"""Prints what a query finds in a SQLite file: `python show.py FILE QUERY`."""

import sqlite3
import sys
from contextlib import closing

_, file, query = sys.argv
with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
    found = database.execute(query)
    rows = [[column[0] for column in found.description], *([str(value) for value in row] for row in found)]
widths = [max(map(len, column)) for column in zip(*rows)]
for row in rows:
    print("  ".join(value.ljust(width) for value, width in zip(row, widths)).rstrip())
