"""Verbs of streams in pipelines drawn at random; whatever they give becomes records (n, t, k) again."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew import Pipeline, Tumbling
from clew.pipeline.verbs import Stream
from clew.pipeline.windows import Window

KINDS = ("filtered", "flattened", "united", "joined", "totalled", "numbered", "stamped")


def declare(
    pipeline: Pipeline, kind: str, name: str, streams: Sequence[Stream], window: Window, settings: dict[str, Any]
) -> Any:
    """Declare a verb of one stream, or of two where there are; returns the port of its records."""
    first, second = streams[0], streams[-1]

    def cut(stream: Stream, columns: Callable[[pa.Table], Any] = lambda table: table["n"]) -> Any:
        @pipeline.operator(stream, name=f"{name}_cut", deterministic=True, **settings)
        def made(table: pa.Table) -> pa.Table:
            return pa.table({"n": columns(table), "t": table["t"], "k": table["k"]})

        return made

    match kind:
        case "filtered":
            odd: Any = (lambda record: record["n"] % 3 > 0) if window.needs_facts else pc.field("n") > 3
            return first.filter(odd, name=name, **{"deterministic": True, **settings})
        case "flattened":
            return first.flat_map(_thrice, name=name, deterministic=True, schema=SCHEMA, **settings)
        case "united" if len(streams) > 1:
            return first.union(second, name=name, **settings)
        case "joined" if len(streams) > 1:
            how = "inner" if window.needs_facts else "full"
            # Some records may have lost their time.
            settings |= {"on_error": "quarantine"}
            both = first.join(second, on="k", window=Tumbling(10, on="t", lateness=7), how=how, name=name, **settings)
            return cut(both, lambda table: pc.add(pc.fill_null(table["n"], 1), pc.fill_null(table["n_right"], 2)))
        case "numbered":
            return cut(first.number("number", name=name, **settings), lambda table: table["number"])
        case "stamped":
            return cut(first.stamp("at", name=name, **settings), _seconds)
        case _:
            total = {"n": ("n", "sum"), "t": ("t", "min")}
            return cut(first.window(window).aggregate("k", name=name, settings=settings, **total))


SCHEMA = pa.schema([(name, pa.int64()) for name in ("n", "t", "k")])


def _thrice(record: dict[str, Any]) -> list[dict[str, Any]]:
    """As many records as the number says, up to three; some make none."""
    return [{**record, "n": record["n"] + index} for index in range(record["n"] % 4)]


def _seconds(table: pa.Table) -> pa.ChunkedArray:
    """A number that tells when a record was taken."""
    return pc.add(table["n"], pc.divide(table["at"].cast(pa.int64()), 1_000_000))
