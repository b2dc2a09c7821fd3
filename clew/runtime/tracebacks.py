"""What of a traceback is the user's own."""

import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_SPARK = ("/pyspark/", "/pyspark.zip", "/py4j/", "/py4j-")


def own_frames(error: BaseException) -> str:
    """Return the frames of the user's own code that an exception came through, as Python prints them."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    if all(_is_arrow(frame.filename) for frame in own):
        # What Clew's own functions ask of Arrow; the user's functions have a line of their own above it.
        own = []
    return "".join(traceback.format_list(own)).rstrip()


def _is_arrow(filename: str) -> bool:
    return filename.startswith("pyarrow/") or "/site-packages/pyarrow/" in filename


def is_ours(filename: str) -> bool:
    """Say whether a file is Clew's or Spark's, and not the user's."""
    return filename.startswith(_PACKAGE) or any(part in filename for part in _SPARK)
