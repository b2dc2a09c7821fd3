"""Step 2: count clicks by the minute in which they happened."""

from clew import Pipeline, Tumbling, files, sqlite

pipeline = Pipeline("clicks")

clicks = pipeline.source("clicks", files("data/clicks.csv", rows_per_event=4))

minutes = Tumbling("1 minute", on="time", lateness="30 seconds", late="too_late")
per_minute = clicks.window(minutes).aggregate(clicks="count", users=("user", "count_distinct"), name="per_minute")

per_minute.sink(sqlite("clicks.db", table="per_minute"))
per_minute["too_late"].sink(sqlite("clicks.db", table="too_late"))
