"""What runs on an executor: everything that touches records.

`execute` takes one task, a plain value, and returns its result, a plain value. The inline engine calls it in this
process, the Spark engine on an executor. A failure of the user's code is caught here and returned as data, so that
Spark retries only what is not the user's fault and the good Input Sets of a job are kept.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from clew.pipeline.contracts import Observed, Replayable
from clew.pipeline.graph import Graph
from clew.pipeline.schema import from_bytes, normalise
from clew.protocol.rows import Bodies
from clew.runtime.bodies import BodyPlace, load
from clew.runtime.codec import decode, decode_stream, encode_stream
from clew.runtime.encoding import Encoder, facts_of
from clew.runtime.generation import Generation, kept
from clew.runtime.task import (
    EffectTask,
    Events,
    FactsTask,
    GenerateTask,
    ObserveTask,
    ReadTask,
    Schemas,
    Task,
    WriteTask,
    Written,
    failure,
)


def execute(graph: Graph, task: Task) -> Any:
    """Run one task of the pipeline `graph`."""
    match task:
        case GenerateTask():
            return Generation(graph, task).run()
        case WriteTask():
            return _write(graph, task)
        case FactsTask():
            logic = graph.operators[task.receiver.operator].logic
            schema = from_bytes(task.schema)
            return tuple(facts_of(logic, decode(body, schema)) for body in load(task.root, task.bodies))
    try:
        match task:
            case ReadTask():
                return _read(graph, task)
            case ObserveTask():
                return _observe(graph, task)
            case EffectTask():
                tables = (decode_stream(body) for body in load(task.place.root, task.effects))
                return _events(graph, task.place, task.outputs, ((table, None) for table in tables))
    except Exception as error:
        return failure(error)


def _read(graph: Graph, task: ReadTask) -> Events:
    source = graph.operators[task.place.operator].source
    assert isinstance(source, Replayable)
    read = (piece for part in task.pieces for piece in source.read(task.snapshot, part))
    return _events(graph, task.place, task.outputs, ((piece.table, piece.offset) for piece in read))


def _observe(graph: Graph, task: ObserveTask) -> Bodies:
    source = graph.operators[task.place.operator].source
    assert isinstance(source, Observed)
    return task.place.store([[encode_stream(normalise(table)) for table in source.observe()]])[0]


def _events(graph: Graph, place: BodyPlace, schemas: Schemas, tables: Iterator[tuple[pa.Table, Any]]) -> Events:
    encoder = Encoder(graph, place.operator, schemas)
    headers, bodies, offset, pieces = [], [], None, 0
    for table, at in tables:
        offset, pieces = at, pieces + 1
        encoded = encoder.encode("out", table)
        if encoded is not None:
            headers.append(encoded[0])
            bodies.append(encoded[1])
    learned = encoder.learned()
    stored = place.store([bodies])[0]
    return Events(tuple(headers), kept(stored), offset, learned[0].schema if learned else None, pieces)


def _write(graph: Graph, task: WriteTask) -> Written:
    sink = graph.operators[task.operator].sinks[task.connection]
    done = 0
    try:
        if task.check:
            return Written(0, tuple(sink.applied(action) for action, _ in task.writes))
        for action, parts in task.writes:
            schema, tables = _content(task.root, parts)
            sink.write(action, tables, schema)
            done += 1
    except Exception as error:
        return Written(done, (), failure(error))
    return Written(done)


def _content(
    root: str | None, parts: Sequence[tuple[bytes | None, tuple[Bodies, ...]]]
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Return what a write action writes; a part without a schema holds whole streams."""
    tables = _tables(root, parts)
    first = next(tables, None)
    if first is None:
        return pa.schema([]), iter(())
    return first.schema, chain([first], tables)


def _tables(root: str | None, parts: Sequence[tuple[bytes | None, tuple[Bodies, ...]]]) -> Iterator[pa.Table]:
    for schema, runs in parts:
        for body in load(root, runs):
            yield decode_stream(body) if schema is None else decode(body, from_bytes(schema))
