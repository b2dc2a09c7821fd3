"""The loop of a source whose read actions follow each other: Algorithm 1 again and again, resumed by Algorithm 6."""

from collections.abc import Sequence
from typing import Any

from clew import trace
from clew.faultpoint import fault_point
from clew.pipeline.contracts import Continuing, News
from clew.protocol.log.alg1_source import complete_next, end_stream
from clew.protocol.log.alg6_source import Resume
from clew.protocol.rows import Bodies
from clew.runtime.progress import Clock
from clew.runtime.runner import Outcome
from clew.runtime.source import CONNECTION, SourceRunner


class FollowingRunner(SourceRunner):
    """Runs a source that looks for more: each thing that it finds is a read action of its own."""

    _ends = False
    #: What was found, from when a read action is added for it until its effect is stored.
    _news: News | None = None
    #: When it last looked, and when something last came: microseconds.
    _looked: int | None = None
    _came: int | None = None

    def _start(self) -> Outcome:
        """Step 1, once there is something to read."""
        found = self._look()
        if isinstance(found, News):
            self._add_action()
            self._news = found
            return "worked"
        return self._end() if found == "over" else "idle"

    def _observe(self) -> Outcome:
        """Steps 2.a and 2.b: the snapshot is the effect; where it was lost with a crash, look again."""
        found = self._news or self._look()
        if not isinstance(found, News):
            # What was found before the crash is gone.
            return self._end() if found == "over" else "idle"
        self._snapshot = found.snapshot
        self._stored([self._store_snapshot(found.snapshot)], found.seen)
        self._news = None
        return "worked"

    def _stored(self, effects: Sequence[Bodies], seen: Any) -> None:
        """Step 2.b."""
        fault_point("after-effect-stored", self.spec.name)
        self.context, step = complete_next(self.context, CONNECTION, effects, seen)
        self.writer.perform(step, "after-action-complete")
        self._resume = Resume("stored", None, tuple(effects))

    def _look(self) -> Any:
        """Look for more, unless it is too early."""
        source, now = self.spec.source, self.around.now()
        assert isinstance(source, Continuing)
        if self._waits(now) > 0:
            return "nothing"
        self._looked = now
        self._came = now if self._came is None else self._came
        found = source.more(self.context.state.get("seen"), (now - self._came) / 1e6)
        if isinstance(found, News):
            self._came = now
            # What comes next is looked for as soon as this was read.
            self._looked = None
        return found

    def _end(self) -> Outcome:
        """The stream is over: its end is an event of its own."""
        fault_point("after-source-read", self.spec.name)
        self.context, step = end_stream(self.context, CONNECTION, incomplete=self._resume.at == "observe")
        self.writer.perform(step, "after-end")
        trace.record("finished", self.spec.name)
        self.around.progress.turn(self.spec.name, 0, 1, 0, Clock())
        self._resume = Resume("finished")
        return "worked"

    def patience(self) -> float | None:
        return self._waits(self.around.now()) if self._resume.at in ("start", "observe") else None

    def _waits(self, now: int) -> float:
        """Return the seconds until the next look; a clock that was set back holds up none."""
        source = self.spec.source
        assert isinstance(source, Continuing)
        if self._looked is None or now < self._looked:
            return 0.0
        return max(0.0, source.poll - (now - self._looked) / 1e6)
