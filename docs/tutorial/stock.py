"""Step 4: keep the level of each item in a table, and all movements in files."""

from clew import Pipeline, files, sqlite

pipeline = Pipeline("stock")

movements = pipeline.source("movements", files("data/movements.csv", rows_per_event=5))

movements.sink(sqlite("stock.db", table="stock", key="item"), name="levels", max_turn_events=2)
movements.sink(files("out/movements", partition_by="item"), name="history")
