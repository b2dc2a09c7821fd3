"""Imported by every Python that a test starts, where it inherits PYTHONPATH: its error messages are counted too."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("clew_messages", Path(__file__).parents[1] / "messages.py")
assert _spec is not None
assert _spec.loader is not None
_messages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_messages)
_messages.follow()
