"""A schema as it stands in a snapshot: Arrow IPC in base64, so that every slice has the same types."""

import base64

import pyarrow as pa


def record(schema: pa.Schema) -> str:
    """Write a schema as text that JSON can hold."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def recall(text: str) -> pa.Schema:
    """Read a schema that `record` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
