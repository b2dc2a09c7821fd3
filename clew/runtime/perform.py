"""The one seam to the world: a decision is committed, then its receivers are woken (S1, S2)."""

from dataclasses import dataclass

from clew.faultpoint import fault_point
from clew.protocol.step import Acknowledge, Step
from clew.runtime.channels import Channels
from clew.store.base import Store


@dataclass(frozen=True, slots=True)
class Writer:
    """Who commits: an operator in one of its incarnations."""

    operator: str
    incarnation: int
    store: Store
    channels: Channels

    def perform(self, step: Step, point: str = "") -> None:
        """Commit the step, then let its events be seen; `point` is the crash point between the two."""
        if step.writes:
            self.store.commit(self.operator, self.incarnation, step.writes, step.durable)
        if point:
            fault_point(point, self.operator)
        for run in step.sends:
            self.channels.send(run)
        for port in step.resends:
            self.channels.resend(port)
        for write in step.writes:
            if isinstance(write, Acknowledge):
                self.channels.acknowledge(write.receiver, write.first + write.count - 1)
