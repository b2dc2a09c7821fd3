"""Data pipelines on Apache Spark that can retrace their steps."""

from clew.connectors import cached, files, generator, http, postgres, spark_read, spark_write, sqlite, streaming
from clew.pipeline.contracts import (
    Connection,
    Continuing,
    News,
    Observed,
    Piece,
    Plan,
    Replayable,
    Sink,
    Source,
    WriteAction,
)
from clew.pipeline.declare import Pipeline, Stream
from clew.pipeline.graph import Capacity
from clew.pipeline.operators import Context, Event, InputSet, Operator
from clew.pipeline.windows import Batch, Count, Each, Tumbling

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Capacity",
    "Connection",
    "Context",
    "Continuing",
    "Count",
    "Each",
    "Event",
    "InputSet",
    "News",
    "Observed",
    "Operator",
    "Piece",
    "Pipeline",
    "Plan",
    "Replayable",
    "Sink",
    "Source",
    "Stream",
    "Tumbling",
    "WriteAction",
    "cached",
    "files",
    "generator",
    "http",
    "postgres",
    "spark_read",
    "spark_write",
    "sqlite",
    "streaming",
]
