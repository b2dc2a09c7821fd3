"""Where in the user's file a declaration stands."""

import os
import sys
from pathlib import Path

# With the separator: a user's own folder may be called clew-something.
_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def caller() -> str:
    """Return `file:line` of the nearest frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
