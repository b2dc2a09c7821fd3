"""A run's figures for Prometheus; they are read from the run's progress when somebody asks, and pushed nowhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from clew.app.settings import address as host_and_port
from clew.errors import SetupFailed
from clew.run import COMMIT_BOUNDS, CommitTimes, OperatorProgress, Progress

Figure = Callable[[OperatorProgress], float]

#: Name, what it counts, and where it is found.
_COUNTERS: tuple[tuple[str, str, Figure], ...] = (
    ("clew_turns", "Turns that were committed.", lambda row: row.turns),
    ("clew_events_in", "Events that were taken.", lambda row: row.events_in),
    ("clew_events_out", "Events that were sent.", lambda row: row.events_out),
    ("clew_records", "Records of the events that were sent.", lambda row: row.records),
    ("clew_bytes", "Bytes of the events that were sent.", lambda row: row.bytes),
    ("clew_restarts", "Restarts of the operator's group.", lambda row: row.restarts),
    ("clew_late_records", "Records that came too late for their window.", lambda row: row.late),
    ("clew_writes_done", "Write actions that were performed.", lambda row: row.writes),
)
_GAUGES: tuple[tuple[str, str, Figure], ...] = (
    ("clew_backlog_events", "Events that wait to be taken.", lambda row: row.backlog),
    ("clew_writes_pending", "Write actions that are logged and not known to be done.", lambda row: row.pending_writes),
    ("clew_last_commit_timestamp_seconds", "When a turn was last committed.", lambda row: row.last_commit),
    ("clew_finished", "1 when the operator has finished.", lambda row: float(row.phase == "finished")),
)
_LABELS = ("pipeline", "operator")


class RunCollector(Collector):
    """Answers a scrape from a run's progress."""

    def __init__(self, pipeline: str, progress: Progress) -> None:
        self._pipeline = pipeline
        self._progress = progress

    def describe(self) -> list[Metric]:
        # Nothing is looked at before somebody asks.
        return []

    def collect(self) -> Iterator[Metric]:
        rows = self._progress.rows()
        kinds = ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES))
        for family, figures in kinds:
            for name, help, figure in figures:
                metric = family(name, help, labels=_LABELS)
                for operator, row in rows.items():
                    metric.add_metric([self._pipeline, operator], figure(row))
                yield metric
        commits = HistogramMetricFamily("clew_commit_seconds", "Seconds that a commit to the log took.", labels=_LABELS)
        for operator, times in self._progress.commits().items():
            commits.add_metric([self._pipeline, operator], _buckets(times), times.seconds)
        yield commits


def _buckets(times: CommitTimes) -> list[tuple[str, float]]:
    bounds = [*(f"{bound:g}" for bound in COMMIT_BOUNDS), "+Inf"]
    return [(bound, sum(times.counts[: index + 1])) for index, bound in enumerate(bounds)]


@contextmanager
def served(address: str, pipeline: str, progress: Progress) -> Iterator[int]:
    """Serve the figures at HOST:PORT for as long as the block lasts; gives the port, which 0 leaves to the system."""
    at = host_and_port(address)
    # A setting is checked when it is read.
    assert at is not None, address
    host, port = at
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(pipeline, progress))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SetupFailed(
            f"the figures cannot be served at {address}: {error.strerror or error}",
            "choose another --metrics HOST:PORT",
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
