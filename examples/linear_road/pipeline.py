"""Linear Road: which cars have broken down, and where two of them are an accident.

    reports ── standing ── stops ── broken_down ──┬── table broken_down
                                                  └── accidents ── table accidents

A car reports twice a minute. It has broken down when four reports of it in a row, which is a window of 120 seconds, say
speed 0 at one position. Two such cars at one position, at one time, are an accident.
"""

import pyarrow as pa
import pyarrow.compute as pc

from clew import Pipeline, Sliding, Tumbling, files, sqlite

pipeline = Pipeline("linear_road")

reports = pipeline.source("reports", files("data/reports.csv", rows_per_event=50))

standing = reports.filter(pc.field("speed") == 0, name="standing")

# A window of two minutes begins every 30 seconds, and the records of one car are always in one Input Set.
stops = standing.window(Sliding(120, 30, on="time", by="car")).aggregate(
    "car", reports="count", positions=("position", "count_distinct"), position=("position", "first"), name="stops"
)


@pipeline.operator(stops, deterministic=True)
def broken_down(stops: pa.Table) -> pa.Table:
    """Keep the cars that stood at one place for a whole window, and say since when."""
    kept = stops.filter((pc.field("reports") == 4) & (pc.field("positions") == 1))
    return kept.select(["window_start", "car", "position"]).rename_columns(["since", "car", "position"])


@pipeline.operator(broken_down, window=Tumbling(30, on="since"), deterministic=True)
def accidents(cars: pa.Table) -> pa.Table:
    """Find the places where two cars or more broke down at one time."""
    groups = cars.group_by(["since", "position"], use_threads=False).aggregate([("car", "count")])
    return groups.rename_columns(["since", "position", "cars"]).filter(pc.field("cars") >= 2)


pipeline.sink(broken_down, sqlite("data/road.db", table="broken_down"))
pipeline.sink(accidents, sqlite("data/road.db", table="accidents"))
