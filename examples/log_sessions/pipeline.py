"""Log sessions: the visits in a web server's access log.

    lines ──┬── requests ── visits ── files out/visits, by day
            └── odd ── table odd

A visit is what one address asks for without a pause of half an hour. Lines that are no requests are kept apart.
"""

import re
from datetime import datetime
from typing import Any

import pandas as pd

from clew import Pipeline, Session, files, sqlite

REQUEST = re.compile(
    r'(?P<address>\S+) \S+ \S+ \[(?P<at>[^]]+)\] "\S+ (?P<path>\S+) [^"]*" (?P<status>\d+) (?P<bytes>\d+)'
)

pipeline = Pipeline("log_sessions")

lines = pipeline.source("lines", files("data/access.jsonl", rows_per_event=20))

kinds = lines.branch(
    requests=lambda record: bool(REQUEST.match(record["line"])), rest="odd", name="kinds", deterministic=True
)
kinds["odd"].sink(sqlite("data/odd.db", table="odd"))


@pipeline.map(kinds["requests"], deterministic=True)
def requests(record: dict[str, Any]) -> dict[str, Any]:
    """Take a line in the common log format apart."""
    found = REQUEST.match(record["line"])
    at = datetime.strptime(found["at"], "%d/%b/%Y:%H:%M:%S %z")
    return {"address": found["address"], "at": at, "path": found["path"], "failed": int(found["status"]) >= 500}


# Requests are written when they were answered, so they are a little out of order: a minute is enough.
@pipeline.operator(
    requests, window=Session("30 minutes", on="at", by="address", lateness="1 minute"), deterministic=True
)
def visits(requests: pd.DataFrame) -> pd.DataFrame:
    """Sum up one visit: where it began and ended, how many requests it had, and how many of them failed."""
    ordered = requests.sort_values("at", kind="stable")
    first, last = ordered.iloc[0], ordered.iloc[-1]
    visit = {
        "day": first["at"].date(),
        "address": first["address"],
        "began": first["at"],
        "seconds": int((last["at"] - first["at"]).total_seconds()),
        "entry": first["path"],
        "requests": len(ordered),
        "failed": int(ordered["failed"].sum()),
    }
    return pd.DataFrame([visit])


pipeline.sink(visits, files("out/visits", partition_by="day"))
