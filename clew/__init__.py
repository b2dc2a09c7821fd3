"""Data pipelines on Apache Spark that can retrace their steps."""

from clew.connectors import (
    cached,
    delta,
    files,
    generator,
    http,
    lookup,
    postgres,
    spark_read,
    spark_write,
    sqlite,
    streaming,
)
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
from clew.pipeline.declare import Pipeline
from clew.pipeline.graph import Capacity
from clew.pipeline.operators import Context, Event, InputSet, Operator
from clew.pipeline.sessions import Session
from clew.pipeline.timewindows import Sliding, Tumbling
from clew.pipeline.verbs import Stream
from clew.pipeline.windows import Batch, Count, Each, Every

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Capacity",
    "Connection",
    "Context",
    "Continuing",
    "Count",
    "Each",
    "Every",
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
    "Session",
    "Sliding",
    "Tumbling",
    "WriteAction",
    "cached",
    "delta",
    "files",
    "generator",
    "http",
    "lookup",
    "postgres",
    "spark_read",
    "spark_write",
    "sqlite",
    "streaming",
]
