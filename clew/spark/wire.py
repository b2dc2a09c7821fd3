"""What passes between the engine service and those who ask it.

A turn is an exchange of messages, each one byte that says what it is, and then its content: that the turn is still
thought of, that it begins, which the caller confirms before it does, and in the end what came of it. Requests and
outcomes are values of Clew's own, pickled. Who asks shows a token in each call's headers, so that nothing of a
stranger's is unpickled.
"""

import pickle
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from clew import __version__
from clew.errors import ClewError, EngineFailed
from clew.runtime.bodies import BodyPlace
from clew.runtime.engine import Job

#: The headers of a call; gRPC wants them in lower case.
TOKEN, VERSION, CODE = "authorization", "clew-version", "clew-code"
#: The actions: who is there, and is anybody there. Their answers are JSON.
HELLO, PING = "hello", "ping"
#: The messages of a turn: it waits or works, it begins, it is given back, this came of it; and that it may begin.
BEAT, BEGUN, GIVEN_BACK, OUTCOME, GO = b"b", b"s", b"e", b"o", b"g"
#: Seconds between two beats.
BEAT_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """A turn that is asked for: which method of the engine, and what it is given besides the job."""

    method: Literal["map", "frames", "observe", "write"]
    job: Job
    arguments: tuple[Any, ...]
    #: Whether nothing else may run beside it.
    alone: bool = False


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A streaming query that is asked for."""

    job: Job
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An error that is to be raised where the outcome is wanted."""

    error: ClewError


# The messages of a stream: from the service...


@dataclass(frozen=True, slots=True)
class Started:
    """The query runs."""

    id: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A batch waits to be admitted."""

    number: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """A batch was stored."""

    effects: list[Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The query runs no more."""

    failure: ClewError | None


@dataclass(frozen=True, slots=True)
class Beat:
    """The query runs still."""


# ... and to it.


@dataclass(frozen=True, slots=True)
class Admit:
    """The batch is to be stored there, or, without a place, skipped."""

    place: BodyPlace | None


@dataclass(frozen=True, slots=True)
class Accept:
    """The batch is logged."""


def pack(value: Any) -> bytes:
    """Pickle a value."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(data: Any) -> Any:
    """Return what was packed; only for what comes from somebody whose token was seen."""
    return pickle.loads(data)


def packed_error(operator: str, error: BaseException) -> bytes:
    """Pack an error, to be raised elsewhere as it is; one that is not Clew's own is told."""
    if isinstance(error, ClewError):
        try:
            packed = pack(Raised(error))
            unpack(packed)
        except Exception:
            # A class of the user's own, which does not say how it is pickled.
            return pack(Raised(EngineFailed(operator, f"{type(error).__name__}: {error}")))
        return packed
    return pack(Raised(EngineFailed(operator, f"{type(error).__name__}: {error}")))


def why(error: BaseException) -> str:
    """Return what gRPC says of a failure, in one line."""
    text = str(error).splitlines()[0] if str(error) else "it hung up"
    return text.rpartition("with message: ")[2].split(". gRPC client")[0].split(". Detail:")[0][:200]


def versions() -> Mapping[str, str]:
    """Return the versions of what is on one side."""
    return {"clew": __version__, "python": platform.python_version(), "pyarrow": pa.__version__}
