"""The outside systems that Clew can read from and write to, one file each."""

from clew.connectors.cache import cached
from clew.connectors.delta import delta
from clew.connectors.files import files
from clew.connectors.generator import generator
from clew.connectors.http import http
from clew.connectors.lookups import lookup
from clew.connectors.postgres import postgres
from clew.connectors.spark import spark_read, spark_write, streaming
from clew.connectors.sqlite import sqlite

__all__ = [
    "cached", "delta", "files", "generator", "http", "lookup", "postgres", "spark_read", "spark_write", "sqlite",
    "streaming",
]  # fmt: skip
