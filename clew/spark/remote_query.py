"""A streaming query that the engine service runs, seen from the source's side of the line."""

import threading
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import flight

from clew.errors import ClewError, EngineLost
from clew.runtime.gate import Gate, GateClosed
from clew.spark.wire import Accept, Admit, Deliver, Ended, Offer, Raised, Started, StreamRequest, pack, unpack, why


class RemoteQuery:
    """Stands at the source's gate in the place of the query's handler, which is at the other end of the line."""

    def __init__(self, operator: str, client: Any, options: Any, request: StreamRequest, gate: Gate) -> None:
        """Start the query; raises what it could not be started for."""
        self._operator = operator
        self._gate = gate
        self._ended: Ended | None = None
        self._lost: ClewError | None = None
        self._writer, self._reader = client.do_exchange(flight.FlightDescriptor.for_command(pack(request)), options)
        started = self._read()
        if isinstance(started, Raised):
            self._hang_up()
            raise started.error
        assert isinstance(started, Started)
        self._id = started.id
        threading.Thread(target=self._follow, name=f"stream-{operator}", daemon=True).start()

    @property
    def id(self) -> str:
        return self._id

    def ended(self) -> bool:
        """Say whether it runs no more; raises EngineLost where the line to it is down."""
        if self._lost is not None:
            raise self._lost
        return self._ended is not None

    def failure(self) -> ClewError | None:
        return None if self._ended is None else self._ended.failure

    def stop(self) -> None:
        """Stop it, whatever it is doing: a batch that was not logged comes again at the next start."""
        self._gate.close()
        with suppress(pa.ArrowException, OSError):
            self._reader.cancel()

    def _follow(self) -> None:
        """Bring batches to the gate, and answers back, until the query ends; runs in a thread of its own."""
        try:
            while self._ended is None and self._lost is None:
                self._heed(self._read())
        except GateClosed:
            pass
        except (pa.ArrowException, OSError, StopIteration) as error:
            self._lost = EngineLost(
                f"the engine was lost under the streaming query of {self._operator} ({why(error)}); the query is "
                "started anew"
            )
        self._hang_up()

    def _heed(self, message: Any) -> None:
        match message:
            case Offer(number):
                self._answer(Admit(self._gate.offer(number)))
            case Deliver(effects):
                self._gate.deliver(effects)
                self._answer(Accept())
            case Ended():
                self._ended = message
            case Raised(error):
                self._lost = error

    def _read(self) -> Any:
        return unpack(self._reader.read_chunk().app_metadata)

    def _answer(self, message: Any) -> None:
        self._writer.write_metadata(pack(message))

    def _hang_up(self) -> None:
        """Let the service know that no more answers come, for which it waits."""
        with suppress(pa.ArrowException, OSError):
            self._writer.done_writing()
        with suppress(pa.ArrowException, OSError):
            self._writer.close()
