"""The events of a run, as OpenLineage has them: a job for the pipeline, and one for each operator.

Made from what can be seen from outside: the declaration, the run's figures and its log.
"""

import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import attr
import pyarrow as pa
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    column_lineage_dataset,
    documentation_dataset,
    error_message_run,
    job_type_job,
    parent_run,
    processing_engine_run,
    schema_dataset,
    sql_job,
)

from clew import __version__
from clew.app.openlineage.names import Name, outside_names, own_name, port_name
from clew.ids import Port, writes_port
from clew.lineage.extents import Extent, Extents
from clew.pipeline.column_lineage import ColumnUse, Schemas, Use, column_lineage, deciding_columns
from clew.pipeline.contracts import Connection, Continuing, Sink, Source, Streamed
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.schema import from_bytes
from clew.run import OperatorProgress, masked

State = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
PRODUCER = f"urn:clew:{__version__}"
#: From which the ids of runs are made, so that the same run has the same ones however often it is resumed.
_RUNS = uuid.UUID("5c6b9d0e-5a7b-4c0e-9f43-0c1f6a3f6f0d")
_USES: Mapping[Use, tuple[str, str]] = {
    "identity": ("DIRECT", "IDENTITY"),
    "aggregation": ("DIRECT", "AGGREGATION"),
    "group by": ("INDIRECT", "GROUP_BY"),
    "join": ("INDIRECT", "JOIN"),
}


@attr.define
class ClewEventsDatasetFacet(DatasetFacet):
    """Leads from a dataset to the events in Clew's log that it consists of, or that were made of it."""

    pipeline: str
    run: str
    port: str
    log: str | None = None
    firstEvent: int | None = None
    lastEvent: int | None = None
    traceBack: str | None = None
    traceForward: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return "urn:clew:openlineage:ClewEventsDatasetFacet:1"


@attr.define
class ClewProgressRunFacet(RunFacet):
    """What an operator has done since the run was started or resumed in this process."""

    run: str
    incarnation: int | None
    restarts: int
    eventsIn: int
    eventsOut: int
    records: int
    bytes: int
    writes: int

    @staticmethod
    def _get_schema() -> str:
        return "urn:clew:openlineage:ClewProgressRunFacet:1"


@dataclass(frozen=True)
class Where:
    """What names a run to those who are told of it."""

    graph: Graph
    namespace: str
    #: As they are written on a command line; a run without a log has none.
    file: str
    log: str | None
    #: Whether commands must name the log.
    named: bool = False

    def command(self, direction: str, event: str) -> str:
        log = ["--log", self.log] if self.named and self.log else []
        return shlex.join(["clew", "trace", direction, self.file, event, *log])


class Events:
    """Makes the events of one run."""

    def __init__(self, where: Where, run_id: str) -> None:
        self._where = where
        self._graph = where.graph
        self._run_id = run_id

    def of_pipeline(self, state: State, error: str = "") -> RunEvent:
        """Return an event of the run as a whole."""
        facets = {"processing_engine": _engine(), **_failure(error)}
        return _event(state, Run(self._uuid(""), facets), self._job("", _kind(self._graph.operators.values())))

    def of_operator(self, state: State, row: OperatorProgress, seen: Extents | None, error: str = "") -> RunEvent:
        """Return an event of an operator, with what the log says of its ports, as far as that is known."""
        spec = self._graph.operators[row.operator]
        facets = {
            "processing_engine": _engine(),
            "parent": self._parent(),
            "clew_progress": self._progress(row, seen),
            **_failure(error),
        }
        datasets = _Datasets(self._where, self._run_id, spec, seen)
        run = Run(self._uuid(spec.name), facets)
        return _event(state, run, self._job(spec.name, _kind([spec]), spec), datasets.inputs(), datasets.outputs())

    def _uuid(self, operator: str) -> str:
        return str(uuid.uuid5(_RUNS, f"{self._run_id}/{operator}"))

    def _job(self, operator: str, kind: str, spec: OperatorSpec | None = None) -> Job:
        name = f"{self._graph.name}.{operator}" if operator else self._graph.name
        facets: dict[str, JobFacet] = {
            "jobType": job_type_job.JobTypeJobFacet(
                kind, "CLEW", "OPERATOR" if operator else "PIPELINE", producer=PRODUCER
            )
        }
        source = spec.source if spec is not None else None
        query = getattr(source, "query", None)
        # What a source does not say of itself is not said here either.
        if source is not None and isinstance(query, str) and query in source.describe():
            facets["sql"] = sql_job.SQLJobFacet(query, producer=PRODUCER)
        return Job(self._where.namespace, name, facets)

    def _parent(self) -> parent_run.ParentRunFacet:
        job = parent_run.Job(self._where.namespace, self._graph.name)
        return parent_run.ParentRunFacet(parent_run.Run(self._uuid("")), job, producer=PRODUCER)

    def _progress(self, row: OperatorProgress, seen: Extents | None) -> ClewProgressRunFacet:
        incarnation = None if seen is None else seen.incarnations.get(row.operator)
        return ClewProgressRunFacet(
            self._run_id, incarnation, row.restarts, row.events_in, row.events_out, row.records, row.bytes, row.writes,
            producer=PRODUCER,
        )  # fmt: skip


def _event(
    state: State, run: Run, job: Job, inputs: Iterable[InputDataset] = (), outputs: Iterable[OutputDataset] = ()
) -> RunEvent:
    return RunEvent(
        eventTime=datetime.now(UTC).isoformat(), producer=PRODUCER, eventType=RunState(state), run=run, job=job,
        inputs=list(inputs), outputs=list(outputs),
    )  # fmt: skip


def _kind(specs: Iterable[OperatorSpec]) -> str:
    """Say whether a job has an end of its own."""
    return "STREAMING" if any(isinstance(spec.source, Continuing | Streamed) for spec in specs) else "BATCH"


def _engine() -> processing_engine_run.ProcessingEngineRunFacet:
    return processing_engine_run.ProcessingEngineRunFacet(__version__, "clew", producer=PRODUCER)


def _failure(error: str) -> dict[str, RunFacet]:
    if not error:
        return {}
    return {"errorMessage": error_message_run.ErrorMessageRunFacet(error, "PYTHON", producer=PRODUCER)}


class _Datasets:
    """What one operator reads and makes."""

    def __init__(self, where: Where, run_id: str, spec: OperatorSpec, seen: Extents | None) -> None:
        self._where = where
        self._run_id = run_id
        self._spec = spec
        self._seen = seen
        self._pipeline = where.graph.name

    def inputs(self) -> Iterator[InputDataset]:
        spec = self._spec
        for sender in spec.inputs.values():
            facets = {**_schema(self._schema(sender)), **self._events(sender)}
            yield InputDataset(*port_name(self._pipeline, sender), facets=facets)
        if spec.source is not None:
            for name, facets in self._outside(spec.source, self._own("source", spec.name)):
                yield InputDataset(*name, facets={**facets, **self._made_of(back=False)})
        for connection, system in spec.reads.items():
            for name, facets in self._outside(system, self._own("read", f"{spec.name}.{connection}")):
                yield InputDataset(*name, facets={**facets, **self._made_of()})
        for lookup, content in spec.lookups.items():
            own = self._own("lookup", f"{spec.name}.{lookup}")
            yield InputDataset(*own, facets={**_documented(content.described), **self._made_of()})

    def outputs(self) -> Iterator[OutputDataset]:
        spec = self._spec
        for output in spec.outputs:
            port = Port(spec.name, output)
            facets = {**_schema(self._schema(port)), **self._columns(output), **self._events(port)}
            yield OutputDataset(*port_name(self._pipeline, port), facets=facets)
        for connection, sink in spec.sinks.items():
            columns = self._columns(connection) if spec.is_sink else {}
            schema = _schema(next(iter(self._schemas().values()), None)) if spec.is_sink else {}
            written = self._events(Port(spec.name, writes_port(connection)), called=_called(spec, connection))
            for name, facets in self._outside(sink, self._own("sink", f"{spec.name}.{connection}")):
                yield OutputDataset(*name, facets={**facets, **schema, **columns, **written})

    def _own(self, role: str, what: str) -> Name:
        return own_name(self._pipeline, role, what)

    def _outside(self, system: Source | Sink | Connection, own: Name) -> Iterator[tuple[Name, dict[str, DatasetFacet]]]:
        told = system.describe() if isinstance(system, Connection) else system.whereabouts()
        for name in outside_names(system, own):
            yield name, _documented(masked(told))

    def _extent(self, port: Port) -> Extent | None:
        return None if self._seen is None else self._seen.ports.get(port)

    def _schema(self, port: Port) -> pa.Schema | None:
        """Return the schema that a port is fixed to, by its first event, or else what is known of it."""
        return self._where.graph.schema(port, self._logged)

    def _logged(self, port: Port) -> pa.Schema | None:
        extent = self._extent(port)
        return None if extent is None or extent.schema is None else from_bytes(extent.schema)

    def _schemas(self) -> Schemas:
        found = {port: self._schema(sender) for port, sender in self._spec.inputs.items()}
        return {port: schema for port, schema in found.items() if schema is not None}

    def _made_of(self, back: bool = True) -> dict[str, DatasetFacet]:
        """Lead from what an operator reads outside to the events that it makes of it."""
        return self._events(Port(self._spec.name, self._spec.outputs[0]), back=back) if self._spec.outputs else {}

    def _events(self, port: Port, called: str = "", back: bool = True) -> dict[str, DatasetFacet]:
        extent, called = self._extent(port), called or str(port)
        facet = ClewEventsDatasetFacet(self._pipeline, self._run_id, called, self._where.log, producer=PRODUCER)
        if extent is not None and extent.first <= extent.last:
            facet.firstEvent, facet.lastEvent = extent.first, extent.last
            if back and extent.captured:
                facet.traceBack = self._where.command("back", f"{called}#{extent.last}")
            if port.name in self._where.graph.operators[port.operator].outputs:
                facet.traceForward = self._where.command("forward", f"{called}#{extent.first}")
        return {"clew_events": facet}

    def _columns(self, output: str) -> dict[str, DatasetFacet]:
        schemas = self._schemas()
        known = column_lineage(self._spec, output, schemas)
        made = None if output in self._spec.sinks else self._schema(Port(self._spec.name, output))
        fields = {
            column: column_lineage_dataset.Fields([self._field(use) for use in uses])
            for column, uses in known.items()
            if made is None or column in made.names
        }
        deciding = [self._field(use) for use in deciding_columns(self._spec, output, schemas)]
        if not fields and not deciding:
            return {}
        facet = column_lineage_dataset.ColumnLineageDatasetFacet(fields, deciding, producer=PRODUCER)
        return {"columnLineage": facet}

    def _field(self, use: ColumnUse) -> column_lineage_dataset.InputField:
        name = port_name(self._pipeline, self._spec.inputs[use.port])
        how = column_lineage_dataset.Transformation(*_USES[use.use])
        return column_lineage_dataset.InputField(*name, use.column, [how])


def _called(spec: OperatorSpec, connection: str) -> str:
    """Name write actions as commands take them: by their connection, unless a port has the same name."""
    return f"{spec.name}.{writes_port(connection) if connection in spec.outputs else connection}"


def _schema(schema: pa.Schema | None) -> dict[str, DatasetFacet]:
    if schema is None:
        return {}
    fields = [_schema_field(field, place) for place, field in enumerate(schema, 1)]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)}


def _schema_field(field: pa.Field, place: int) -> schema_dataset.SchemaDatasetFacetFields:
    inner = [_schema_field(one, at) for at, one in enumerate(field.type, 1)] if pa.types.is_struct(field.type) else []
    return schema_dataset.SchemaDatasetFacetFields(
        field.name, "struct" if inner else str(field.type), ordinal_position=place, fields=inner
    )


def _documented(text: str) -> dict[str, DatasetFacet]:
    return {"documentation": documentation_dataset.DocumentationDatasetFacet(text, producer=PRODUCER)}
