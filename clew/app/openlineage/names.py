"""What outside systems are called in OpenLineage: a namespace and a name, after its naming rules, without secrets.

Other tools call the same file or table the same, which is how lineage goes on from one of them to the next.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from clew.ids import Port
from clew.pipeline.contracts import Connection, FilesHeld, Held, RowsHeld, Sink, Source
from clew.run import masked

_POSTGRES_PORT = 5432
_GLOB = re.compile(r"[*?\[]")


class Name(NamedTuple):
    """A dataset's identity."""

    namespace: str
    name: str


def port_name(pipeline: str, port: Port) -> Name:
    """Name the events of a port."""
    return Name(f"clew://{pipeline}", str(port))


def own_name(pipeline: str, role: str, what: str) -> Name:
    """Name something that only this pipeline knows: a generator, a system of the user's own."""
    # No port has a colon in its name.
    return Name(f"clew://{pipeline}", f"{role}:{what}")


def outside_names(system: Source | Sink | Connection, own: Name) -> list[Name]:
    """Name what a connection leads to; `own` is for what has no name that others know."""
    held: Held | None = None if isinstance(system, Connection) else system.holds()
    described = system.describe()
    if isinstance(held, FilesHeld):
        return list(dict.fromkeys(_file(place) for place in held.places))
    if isinstance(held, RowsHeld):
        return [_rows(held, described, own)]
    path = getattr(held, "path", None)
    if isinstance(path, str):
        return [_file(path)]
    return [_described(described, own)]


def _file(place: str) -> Name:
    """Name a path; of a glob, the directory that all its files are in."""
    parts = urlsplit(place)
    if parts.scheme and parts.netloc:
        return Name(masked(f"{parts.scheme}://{parts.netloc}"), parts.path.strip("/") or "/")
    steps = os.path.abspath(place).split(os.sep)
    plain = next((index for index, step in enumerate(steps) if _GLOB.search(step)), len(steps))
    return Name("file", os.sep.join(steps[:plain]) or os.sep)


def _rows(held: RowsHeld, described: str, own: Name) -> Name:
    """Name a table; what a query reads is told by the query itself, which stands in the job."""
    if held.database.startswith("sqlite:///"):
        return Name(f"sqlite://{os.path.abspath(held.database.removeprefix('sqlite:///'))}", held.table or _query(own))
    return _postgres(described, held.table, own) or own


def _postgres(described: str, table: str, own: Name) -> Name | None:
    # Described without its password, and as a URL however it was written.
    found = re.match(r"postgresql://(?:(?P<user>[^/@\s]*)@)?(?P<host>\S*)/(?P<database>[^\s/:]*)", described)
    if found is None:
        return None
    host, _, port = found["host"].rpartition(":") if re.search(r":\d+$", found["host"]) else (found["host"], "", "")
    database = found["database"] or found["user"] or ""
    in_schema = table if "." in table else f"public.{table}"
    return Name(
        f"postgres://{host or 'localhost'}:{port or _POSTGRES_PORT}",
        f"{database}.{in_schema if table else _query(own)}",
    )


def _query(own: Name) -> str:
    return f"{own.name} of {own.namespace}"


def _described(described: str, own: Name) -> Name:
    """Name what is described by an address on the web; anything else is this pipeline's own."""
    found = _postgres(described, "", own)
    if found is not None:
        return found
    web = re.search(r"https?://\S+", described)
    if web is None:
        return own
    parts = urlsplit(web[0])
    return Name(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path or "/")
