"""Connections of the operators of this process, with each other and with operators elsewhere.

The channel is the log: what is here is a cache of what the log holds unacknowledged, and a way to wake up. When
the cache does not continue where a receiver stands, it is read from the log again; so it can be dropped, late or
incomplete without harm. Operators elsewhere are told by a bell that there is something new; the bell may be late or
silent, so whoever is idle looks into the log now and then all the same.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from clew.ids import Port
from clew.pipeline.graph import Graph
from clew.protocol.rows import EventRun
from clew.store.base import Backlog, Store


@dataclass
class _Channel:
    """One connection: runs not yet acknowledged, in order.

    `stale`: the log must be read before this is used. `more`: the log holds more than fits here, to be read when
    this has been acknowledged. `news`: the log may hold more after what is here, logged by another process.
    """

    runs: deque[EventRun] = field(default_factory=deque)
    #: None until the log was asked where the receiver stands.
    acknowledged: int | None = None
    events: int = 0
    bytes: int = 0
    stale: bool = True
    more: bool = False
    news: bool = False


def _silent(names: Iterable[str]) -> None:
    """Ring nowhere: all operators are in this process."""


class Channels:
    """All connections of a graph that operators of this process send or receive on.

    `here` names those operators, by default all; `ring` tells the others, by their names, to look into the log.
    """

    def __init__(
        self,
        graph: Graph,
        store: Store,
        here: Collection[str] | None = None,
        ring: Callable[[Iterable[str]], None] = _silent,
    ) -> None:
        self._graph = graph
        self._store = store
        self._lock = threading.Lock()
        self._ring = ring
        self._wakers: dict[str, threading.Event] = {
            name: threading.Event() for name in graph.operators if here is None or name in here
        }
        receivers = [link.receiver for link in graph.links if link.receiver.operator in self._wakers]
        self._channels: dict[Port, _Channel] = {receiver: _Channel() for receiver in receivers}
        #: What waits at receivers elsewhere, at most: what it was when the log was asked, and all that was sent since.
        self._away: dict[Port, Backlog] = {}

    def reset(self, receiver: Port, acknowledged: int) -> None:
        """Start again where the log says that the receiver stands."""
        with self._lock:
            self._channels[receiver] = _Channel(acknowledged=acknowledged)

    def send(self, run: EventRun) -> None:
        """Make committed events known to their receivers, and wake them."""
        for receiver in self._graph.receivers(run.port):
            with self._lock:
                if receiver in self._channels:
                    self._append(self._channels[receiver], run)
                elif receiver in self._away:
                    waiting = self._away[receiver]
                    self._away[receiver] = Backlog(waiting.events + len(run.headers), waiting.bytes + run.size)
            self.wake(receiver.operator)

    def resend(self, port: Port) -> None:
        """Make receivers look into the log, where there may be more than they know of (Algorithm 7)."""
        for receiver in self._graph.receivers(port):
            with self._lock:
                if receiver in self._channels:
                    self._channels[receiver].stale = True
                self._away.pop(receiver, None)
            self.wake(receiver.operator)

    def news(self, names: Collection[str] = ()) -> None:
        """Let operators of this process look into the log for what others have logged; without names, all of them."""
        for name in names or tuple(self._wakers):
            if name in self._wakers:
                with self._lock:
                    self._look(name)
                self._wakers[name].set()

    def _look(self, operator: str) -> None:
        """Do not rely on what is known of operators elsewhere."""
        spec = self._graph.operators[operator]
        for port, sender in spec.inputs.items():
            if sender.operator not in self._wakers:
                self._channels[Port(operator, port)].news = True
        for port in spec.outputs:
            for receiver in self._graph.receivers(Port(operator, port)):
                self._away.pop(receiver, None)

    def take(self, receiver: Port, max_events: int, max_bytes: int) -> list[EventRun]:
        """Return what waits for the receiver, in order, within the limits; at least one event if there is any."""
        with self._lock:
            channel = self._loaded(receiver)
            runs: list[EventRun] = []
            events = size = 0
            for run in channel.runs:
                room = _fit(run, max_events - events, max_bytes - size, first=not runs)
                if room:
                    runs.append(run.cut(0, room))
                    events += room
                    size += runs[-1].size
                if room < len(run.headers):
                    break
            return runs

    def acknowledge(self, receiver: Port, upto: int) -> None:
        """Forget what the receiver has acknowledged, and wake the sender, which may have waited for room."""
        with self._lock:
            channel = self._channels[receiver]
            channel.acknowledged = upto
            while channel.runs and channel.runs[0].first <= upto:
                run = channel.runs.popleft()
                gone = min(upto - run.first + 1, len(run.headers))
                channel.events -= gone
                channel.bytes -= run.cut(0, gone).size
                if gone < len(run.headers):
                    channel.runs.appendleft(run.cut(gone, len(run.headers)))
                    break
        self.wake(self._graph.sender(receiver).operator)

    def backlog(self, receiver: Port) -> Backlog:
        with self._lock:
            if receiver not in self._channels:
                return self._backlog_away(receiver)
            channel = self._loaded(receiver)
            if channel.more:
                capacity = self._graph.operators[receiver.operator].settings.capacity
                return Backlog(max(channel.events, capacity.events), channel.bytes)
            return Backlog(channel.events, channel.bytes)

    def _backlog_away(self, receiver: Port) -> Backlog:
        """Return what waits elsewhere, at most; the log is asked when that would be too much."""
        capacity = self._graph.operators[receiver.operator].settings.capacity
        waiting = self._away.get(receiver)
        if waiting is None or waiting.events >= capacity.events or waiting.bytes >= capacity.bytes:
            waiting = self._away[receiver] = self._store.backlog(receiver)
        return waiting

    def room(self, operator: str) -> bool:
        """Say whether every connection that the operator sends on has room left."""
        spec = self._graph.operators[operator]
        for port in spec.outputs:
            for receiver in self._graph.receivers(Port(operator, port)):
                capacity = self._graph.operators[receiver.operator].settings.capacity
                waiting = self.backlog(receiver)
                if waiting.events >= capacity.events or waiting.bytes >= capacity.bytes:
                    return False
        return True

    def backlogs(self) -> Mapping[Port, Backlog]:
        return {receiver: self.backlog(receiver) for receiver in self._channels}

    def wake(self, operator: str) -> None:
        if operator in self._wakers:
            self._wakers[operator].set()
        else:
            self._ring((operator,))

    def waker(self, operator: str) -> threading.Event:
        return self._wakers[operator]

    def share_waker(self, operators: tuple[str, ...]) -> threading.Event:
        """Let the operators of a group wake one thread."""
        waker = threading.Event()
        for operator in operators:
            self._wakers[operator] = waker
        return waker

    def _append(self, channel: _Channel, run: EventRun) -> None:
        if channel.stale or channel.more:
            return
        known = channel.runs[-1].last if channel.runs else channel.acknowledged or 0
        if run.last <= known:
            return
        if run.first != known + 1:
            channel.stale = True
            return
        channel.runs.append(run)
        channel.events += len(run.headers)
        channel.bytes += run.size

    def _loaded(self, receiver: Port) -> _Channel:
        channel = self._channels[receiver]
        if channel.stale or (channel.more and not channel.runs):
            self._load(receiver, channel)
        elif channel.news and not channel.more:
            self._extend(receiver, channel)
        return channel

    def _load(self, receiver: Port, channel: _Channel) -> None:
        capacity = self._graph.operators[receiver.operator].settings.capacity
        if channel.acknowledged is None:
            channel.acknowledged = self._acknowledged(receiver)
        # One event above the capacity, so that a full connection is seen to be full.
        runs = self._store.unacknowledged(receiver, channel.acknowledged, capacity.events + 1, capacity.bytes + 1)
        # Asked after they were read: asked before, events logged in between would pass with their writes undone.
        if self._held(self._graph.sender(receiver)):
            return
        channel.runs = deque(runs)
        channel.events = sum(len(run.headers) for run in runs)
        channel.bytes = sum(run.size for run in runs)
        # Asked of the log: what was read may end short of either limit when the next event does not fit.
        channel.more = bool(runs and self._store.unacknowledged(receiver, runs[-1].last, 1, 1))
        channel.stale = channel.news = False

    def _extend(self, receiver: Port, channel: _Channel) -> None:
        """Read what came after what is here: all of it again would cost what waits, for each event that comes."""
        capacity = self._graph.operators[receiver.operator].settings.capacity
        known = channel.runs[-1].last if channel.runs else channel.acknowledged or 0
        events, size = capacity.events + 1 - channel.events, capacity.bytes + 1 - channel.bytes
        if events <= 0 or size <= 0:
            return
        # Before they are read, so that what is logged meanwhile is not missed.
        channel.news = False
        runs = self._store.unacknowledged(receiver, known, events, size)
        if self._held(self._graph.sender(receiver)):
            channel.news = True
            return
        for run in runs:
            self._append(channel, run)
        channel.more = bool(runs and self._store.unacknowledged(receiver, runs[-1].last, 1, 1))

    def _acknowledged(self, receiver: Port) -> int:
        row = self._store.state(receiver.operator)
        return int(row.context["latest"].get(receiver.name, 0)) if row else 0

    def _held(self, sender: Port) -> bool:
        """Say whether events must wait for write actions of their sender, which a crash may have left undone."""
        spec = self._graph.operators[sender.operator]
        if not spec.settings.after_write:
            return False
        return any(self._store.undone_writes(Port(spec.name, name), 1) for name in spec.sinks)


def _fit(run: EventRun, events: int, size: int, first: bool) -> int:
    """Return how many events of the run fit; at least one if it is the first."""
    if len(run.headers) <= events and run.size <= size:
        return len(run.headers)
    count = 0
    for header in run.headers[: max(events, 0)]:
        size -= header.size
        if size < 0 and not (first and count == 0):
            break
        count += 1
    return count
