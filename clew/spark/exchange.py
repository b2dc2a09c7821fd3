"""A streaming query of the engine service: its batches are offered over the line, and go on when the answer comes."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from clew.runtime.engine import Engine, Query
from clew.runtime.gate import Gate
from clew.spark.turns import Beside
from clew.spark.wire import BEAT_EVERY, Accept, Admit, Beat, Deliver, Ended, Offer, Started, StreamRequest, pack, unpack

#: Seconds after which a query is asked whether it has ended: it tells nobody by itself.
_ASK = 0.2


class Exchange:
    """Stands at the gate of a query in the place of the source's runner, which is at the other end of the line."""

    def __init__(
        self,
        engine: Engine,
        request: StreamRequest,
        reader: Any,
        writer: Any,
        beside: Beside,
        over: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._request = request
        self._reader = reader
        self._writer = writer
        self._beside = beside
        #: Whether the caller is gone, or the service ends.
        self._over = over
        self._woken = threading.Event()
        self._gone = threading.Event()
        self._stored = threading.Event()
        self._gate = Gate(self._woken.set)
        self._answers = threading.Thread(target=self._take_answers, name=f"stream-{request.job.operator}", daemon=True)

    def run(self) -> None:
        """Run the query until it is over; raises where it cannot be started, or where nobody can say what it does."""
        query = self._engine.stream(self._request.job, self._request.checkpoint, self._gate)
        try:
            self._send(Started(query.id))
            self._answers.start()
            self._offer(query)
        except (pa.ArrowException, OSError):
            # The line is down: whoever is there asks anew.
            pass
        finally:
            self._gone.set()
            self._gate.close()
            self._stored.set()
            query.stop()

    def hang_up(self) -> None:
        """Wait until the other side has hung up too: until then its answers are read, and the line must be there."""
        if self._answers.ident is not None:
            self._answers.join()

    def _offer(self, query: Query) -> None:
        told: tuple[str, int] | None = None
        quiet = 0.0
        while not self._gone.is_set() and not self._over():
            # Asked first: a query ends after its last batch.
            ended = query.ended()
            number, delivered = self._gate.offered(), self._gate.delivered()
            if number is not None and told != ("offered", number):
                told = ("offered", number)
                self._send(Offer(number))
            elif delivered is not None and told != ("delivered", delivered[0]):
                told = ("delivered", delivered[0])
                self._stored.set()
                self._send(Deliver(delivered[1]))
            elif ended:
                self._send(Ended(query.failure()))
                return
            else:
                quiet = 0.0 if self._woken.wait(_ASK) else quiet + _ASK
                self._woken.clear()
                if quiet >= BEAT_EVERY:
                    quiet = 0.0
                    self._send(Beat())

    def _take_answers(self) -> None:
        """Do at the gate what the answers say; runs in a thread of its own."""
        # It ends as it will: by the caller, by the line, or by the end of the query.
        with suppress(StopIteration, pa.ArrowException, OSError):
            while True:
                answer = unpack(self._reader.read_chunk().app_metadata)
                if isinstance(answer, Accept):
                    self._gate.accept()
                elif isinstance(answer, Admit) and answer.place is None:
                    self._gate.admit(None)
                elif not self._gone.is_set():
                    self._let_through(answer)
        self._gone.set()
        self._woken.set()

    def _let_through(self, answer: Admit) -> None:
        """Let a batch be stored, when no turn runs alone; and none will before it is."""
        with self._beside.passed():
            self._stored.clear()
            self._gate.admit(answer.place)
            self._stored.wait()

    def _send(self, message: Any) -> None:
        self._writer.write_metadata(pack(message))
