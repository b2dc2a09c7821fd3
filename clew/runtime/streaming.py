"""The loop of a source that is a streaming query: each batch is a read action, and the query waits until it is logged.

Spark's checkpoint says what is in a batch, the log says which batches were read. Q1: a batch is logged, by its number
and a digest of its offsets, before Spark may count it as done, and never twice. The batch that was logged last
comes again after a crash between the two; it is skipped unread.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from clew.disk import make_directory, sync_directory, sync_file
from clew.errors import ClewError, EngineFailed, SetupFailed, SourceFailed
from clew.pipeline.contracts import Streamed
from clew.runtime.engine import Query
from clew.runtime.following import FollowingRunner
from clew.runtime.gate import Gate
from clew.runtime.runner import Outcome
from clew.runtime.task import Failure

#: Seconds after which a query is asked whether it has ended: it tells nobody by itself.
_ASK = 0.2
_CURE = "put back the checkpoint that belongs to this log, or start both anew with --fresh"


class StreamingRunner(FollowingRunner):
    """Runs a source whose read actions are the batches of a streaming query."""

    _gate: Gate | None = None
    _query: Query | None = None

    def _start(self) -> Outcome:
        """Step 1, once a batch is offered."""
        number = self._next_batch()
        if isinstance(number, int):
            self._add_action()
            self._admit()
            return "worked"
        return self._end() if number == "over" else "idle"

    def _observe(self) -> Outcome:
        """Steps 2.a and 2.b: the batch is stored by the query's handler; log it, then let the query go on."""
        gate = self._gate
        delivered = gate.delivered() if gate is not None else None
        if gate is not None and delivered is not None:
            self._log(gate, *delivered)
            return "worked"
        number = self._next_batch()
        if isinstance(number, int):
            # The action was added before a crash.
            self._admit()
            return "worked"
        return self._end() if number == "over" else "idle"

    def _next_batch(self) -> Any:
        """Return the number of a batch that was never read; "nothing" while there is none, "over" if none will come."""
        gate, query = self._running()
        # Asked first: a query ends after its last batch.
        ended = query.ended()
        number = gate.offered()
        if number is None:
            return self._ended(query) if ended else "nothing"
        if self._is_known(number):
            gate.admit(None)
            return "nothing"
        return number

    def _running(self) -> tuple[Gate, Query]:
        if self._gate is None or self._query is None:
            gate = Gate(lambda: self.around.channels.wake(self.spec.name))
            assert isinstance(self.spec.source, Streamed)
            job = self.job(self.context.turn + 1, self.spec.source.describe())
            make_directory(self._checkpoint)
            query = self.around.engine.stream(job, self._checkpoint, gate)
            self._refuse_other(query)
            self._gate, self._query = gate, query
        return self._gate, self._query

    @property
    def _checkpoint(self) -> str:
        if self.around.bodies is None:
            raise SetupFailed(
                f"source {self.spec.name} is a streaming query, whose checkpoint is kept beside the event bodies, and "
                "this run has no directory for them",
                "give it one with --bodies DIR, or a log in a file",
            )
        return os.path.join(self.around.bodies, ".streams", self.spec.name)

    def _refuse_other(self, query: Query) -> None:
        seen = self.context.state.get("seen")
        if seen is not None and seen["query"] != query.id:
            raise self._refused(f"its checkpoint is that of query {query.id}, expected {seen['query']}")

    def _is_known(self, number: int) -> bool:
        """Say whether a batch was logged already; raises SourceFailed where log and checkpoint do not agree (Q1)."""
        seen = self.context.state.get("seen")
        last = -1 if seen is None else seen["batch"]
        if number == last + 1:
            return False
        if seen is None or number != last:
            raise self._refused(
                f"Spark has come to batch {number}, expected {last + 1}: the checkpoint or the log is old"
            )
        if seen["offsets"] != self._digest(number):
            raise self._refused(f"batch {number} was read with other offsets than those that its checkpoint has now")
        return True

    def _refused(self, what: str) -> SourceFailed:
        assert self.spec.source is not None
        return SourceFailed(self.spec.source.describe(), f"{what} (in {self._checkpoint})", _CURE)

    def _admit(self) -> None:
        assert self._gate is not None
        self._gate.admit(self.place(self.context.turn + 1))

    def _log(self, gate: Gate, number: int, effects: list[Any]) -> None:
        failures = [effect for effect in effects if isinstance(effect, Failure)]
        if failures:
            self._failed(self.failed(failures[0], f"batch {number}", self._attempts + 1))
            return
        assert self._query is not None
        if self.around.durable_bodies:
            _sync(self._checkpoint)
        seen = {"query": self._query.id, "batch": number, "offsets": self._digest(number)}
        self._stored(effects, seen)
        gate.accept()
        self._attempts = 0

    def _digest(self, number: int) -> str:
        """Return a digest of what Spark has planned for a batch; it is written before the batch is made."""
        planned = Path(self._checkpoint, "offsets", str(number)).read_bytes()
        return hashlib.blake2b(planned, digest_size=16).hexdigest()

    def _ended(self, query: Query) -> Any:
        failure = query.failure()
        if failure is None and self._gate is not None and self._gate.busy:
            failure = EngineFailed(self.spec.name, "its streaming query was stopped within a batch")
        if failure is None:
            return "over"
        self._failed(failure)
        return "nothing"

    def _failed(self, error: ClewError) -> None:
        """Start the query anew, a limited number of times."""
        self._attempts += 1
        if self._attempts >= self.spec.settings.attempts:
            raise error
        self._gate = self._query = None

    def patience(self) -> float | None:
        return _ASK if self._resume.at in ("start", "observe") else None


def _sync(checkpoint: str) -> None:
    """Sync what Spark has written of its checkpoint, which it does not do itself.

    Lost with the power, a batch that the log has would be planned anew with other offsets.
    """
    for folder, _, names in os.walk(checkpoint):
        for name in names:
            # Spark removes what it needs no more at any time.
            with suppress(FileNotFoundError):
                sync_file(os.path.join(folder, name))
        with suppress(FileNotFoundError):
            sync_directory(folder)
