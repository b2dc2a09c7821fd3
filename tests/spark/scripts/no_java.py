"""`no_java.py`: run a pipeline where Spark cannot start, and say what a user would read."""

import json

import pyarrow as pa

from clew import Pipeline, generator
from clew.errors import ClewError
from clew.run import run

pipeline = Pipeline("nothing")
pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 1))
try:
    run(pipeline)
except ClewError as error:
    print(json.dumps({"kind": type(error).__name__, "message": str(error)}))
