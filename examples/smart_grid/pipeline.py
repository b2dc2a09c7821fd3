"""Smart grid: the days on which more than seven meters measured nothing.

    readings ── daily ──┬── dark ── blackouts ── files out/blackouts
                        └── (too_late) ──────── files out/too_late

Meters send their consumption every hour, over a radio link that holds some readings back. A day is summed up six hours
after its end. What comes later than that is not lost: it goes to files of its own.
"""

import pyarrow as pa
import pyarrow.compute as pc

from clew import Pipeline, Tumbling, files

pipeline = Pipeline("smart_grid")

readings = pipeline.source("readings", files("data/readings.csv", rows_per_event=60))

daily = readings.window(Tumbling("1 day", on="time", by="meter", lateness="6 hours", late="too_late")).aggregate(
    "meter", total=("watt_hours", "sum"), name="daily"
)


@pipeline.operator(daily, deterministic=True)
def dark(days: pa.Table) -> pa.Table:
    """Keep the meters that measured nothing for a whole day."""
    kept = days.filter(pc.field("total") == 0)
    return kept.select(["window_start", "meter"]).rename_columns(["day", "meter"])


@pipeline.operator(dark, window=Tumbling("1 day", on="day"), deterministic=True)
def blackouts(meters: pa.Table) -> pa.Table:
    """Count a day's dark meters; more than seven are a blackout."""
    days = meters.group_by("day", use_threads=False).aggregate([("meter", "count")])
    return days.rename_columns(["day", "meters"]).filter(pc.field("meters") > 7)


pipeline.sink(blackouts, files("out/blackouts"))
pipeline.sink(daily["too_late"], files("out/too_late"))
