"""Crash points: named places where a test, or a demonstration, can make a run die.

A point costs one dictionary look-up unless it is armed. It is armed through the environment variable
CLEW_FAULTS, so that a whole process can be made to die at an exact place, or by `arm` in tests. A fault is
written `point[@operator][#nth][:action]`; several are separated by commas. The action is `kill`
(kill -9 of the process, the default), `raise`, `freeze` (SIGSTOP) or `sleep=SECONDS`.
"""

import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass, field

#: Every crash point and where it stands. `clew crash-points` prints this.
POINTS: dict[str, str] = {}


def _register(**points: str) -> None:
    POINTS.update({name.replace("_", "-"): text for name, text in points.items()})


_register(
    before_action_logged="Algorithm 1, Step 1: a read action is chosen, not yet in READ_ACTION",
    after_action_logged="Algorithm 1, Step 1: the read action is logged as incomplete, not yet executed",
    after_effect_stored="Algorithm 1, Step 2.a: the effect is stored, the action not yet complete",
    after_action_complete="Algorithm 1, Step 2.b: the action is complete, no event made of it yet",
    after_source_read="Algorithm 1, Step 2.c/3: events are read, not yet logged",
    after_source_commit="Algorithm 1, Step 2.c/3: events and offset are logged, receivers not yet woken",
    before_effect_dropped="Algorithm 1, Step 2.d: all events are logged, the stored effect not yet dropped",
    after_effect_dropped="Algorithm 1, Step 2.d: the stored effect is dropped",
    after_gather="Algorithm 2, Step 1: events are taken from the channel",
    after_assign="Algorithm 2, Step 2: Input Sets are assigned, nothing is logged",
    after_generate="Algorithm 3, Step 3: Output Sets are computed, nothing is logged",
    inside_commit="Algorithm 3, Step 4: the turn's transaction is open, all writes applied, not committed",
    after_commit="Algorithm 3, Step 4: the turn is committed, receivers not yet woken",
    after_wake="Algorithm 3, Step 5: receivers are woken, write actions not yet performed",
    before_write="Algorithm 5, Step 1: a write action is about to be performed",
    sink_before_commit="Algorithm 5, Step 1: inside the sink's transaction, before it commits",
    sink_after_commit="Algorithm 5, Step 1: the sink has committed, the writer does not know yet",
    sink_before_rename="Algorithm 5, Step 1: the sink's file is written under its temporary name",
    after_write="Algorithm 5, Step 3: the write is performed, not yet marked done",
    after_write_done="Algorithm 5, Step 3: the write is marked done",
    after_take_over="recovery: a new incarnation is durable, nothing is read yet",
    after_source_restore="Algorithm 6, Step 2: the last read action and offset are restored",
    after_resend="Algorithm 7, Step 1: receivers are woken for what is undone",
    before_write_check="Algorithm 8, Step 2.a: an undone write is about to be checked",
    after_restore="Algorithm 9, Step 1: global state and counters are restored",
    after_recovered_input="Algorithm 9, Step 2: acknowledged events are processed again",
    before_running="Algorithm 9, Step 3: recovered, the state not yet set to running",
    before_flush="end of stream: all inputs have ended, open windows not yet generated",
    after_end="end of stream: the operator's own end is logged, receivers not yet woken",
    before_collect="garbage collection: what can go is known, nothing is removed",
    after_collect="garbage collection: rows are removed, body files not yet",
)


class CrashInjected(BaseException):
    """An armed crash point of action `raise` was reached.

    Not an Exception: no handler on the way may take it for a failure of the work at hand.
    """

    def __init__(self, point: str, operator: str) -> None:
        super().__init__(f"crash point {point} in {operator}")
        self.point, self.operator = point, operator


@dataclass
class Fault:
    """One armed fault."""

    point: str
    operator: str = ""
    nth: int = 1
    action: str = "kill"
    seen: int = 0
    fired: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Fault":
        match = re.fullmatch(r"([a-z-]+)(?:@([\w-]+))?(?:#(\d+))?(?::(kill|raise|freeze|sleep=[\d.]+))?", text.strip())
        if not match or match[1] not in POINTS:
            raise ValueError(f"{text!r} is not a fault; write point[@operator][#nth][:action], see `clew crash-points`")
        return cls(match[1], match[2] or "", int(match[3] or 1), match[4] or "kill")

    def due(self, operator: str) -> bool:
        """Count a visit; return whether it is time."""
        if self.operator and self.operator != operator:
            return False
        with self.lock:
            self.seen += 1
            return not self.fired and self.seen >= self.nth

    def take(self) -> bool:
        """Return True once."""
        with self.lock:
            taken, self.fired = not self.fired, True
            return taken


_armed: dict[str, list[Fault]] = {}


def arm(*faults: str | Fault) -> list[Fault]:
    """Arm faults in this process, in place of those armed before; returns them so that a test can ask `fired`."""
    parsed = [fault if isinstance(fault, Fault) else Fault.parse(fault) for fault in faults]
    _armed.clear()
    for fault in parsed:
        _armed.setdefault(fault.point, []).append(fault)
    return parsed


def fault_point(name: str, operator: str = "") -> None:
    """Die here if a test asked for it."""
    if not _armed:
        return
    # Each counts this visit, also where another one ends it.
    for fault in [fault for fault in _armed.get(name, ()) if fault.due(operator)]:
        if fault.take():
            _fire(fault, operator)


def _fire(fault: Fault, operator: str) -> None:
    mark = os.environ.get("CLEW_FAULTS_FIRED")
    if mark:
        # A test reads this file to see that its fault really fired.
        with open(mark, "a", encoding="utf-8") as out:
            out.write(f"{fault.point}@{operator}\n")
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "freeze":
        # To this thread: sent to the process, another thread may take it, and this one would run on for a while.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif fault.action.startswith("sleep="):
        time.sleep(float(fault.action[6:]))
    else:
        raise CrashInjected(fault.point, operator)


if os.environ.get("CLEW_FAULTS"):
    try:
        arm(*os.environ["CLEW_FAULTS"].split(","))
    except ValueError as wrong:
        sys.exit(f"error: CLEW_FAULTS: {wrong}")
