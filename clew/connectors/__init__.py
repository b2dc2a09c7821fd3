"""The outside systems that Clew can read from and write to, one file each."""

from clew.connectors.files import files
from clew.connectors.generator import generator

__all__ = ["files", "generator"]
