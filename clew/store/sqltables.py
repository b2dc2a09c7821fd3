"""What a log in SQL tells of whole ports, to those who only read it."""

from abc import abstractmethod
from collections.abc import Iterator

from clew.errors import NewerLog, StoreFailed, WrongLog
from clew.ids import NONE_SET, WRITES, Port
from clew.protocol.rows import EventRun, Status
from clew.store.base import SCHEMA_VERSION, Entry
from clew.store.intervals import Intervals
from clew.store.ledger import read_done, read_done_writes
from clew.store.sqllineage import collected, last_sent, taken_between
from clew.store.sqlread import SqlReads, sent_between
from clew.store.statements import Transaction

_PORTS = f"""SELECT operator, port FROM link
    UNION SELECT operator, port FROM port_schema
    UNION SELECT operator, port FROM collected
    UNION SELECT operator, port FROM sent
    UNION SELECT operator, '{WRITES}' || connection FROM write_action"""
_WRITES = "SELECT number FROM write_action WHERE operator = ? AND connection = ? AND number >= ? AND number <= ?"


class SqlTables(SqlReads):
    """The methods of a reader of a log whose rows are in SQL."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def ports(self) -> list[Port]:
        with self._reading() as log:
            return sorted(Port(operator, port) for operator, port in log.fetch(_PORTS))

    def headers(self, port: Port, first: int, count: int) -> list[EventRun]:
        with self._snapshot() as log:
            return sent_between(log, port, first, first + count - 1)

    def entries(self, port: Port, first: int, count: int) -> list[Entry]:
        low, high = first, first + count - 1
        with self._snapshot() as log:
            if port.name.startswith(WRITES):
                return _writes(log, Port(port.operator, port.name.removeprefix(WRITES)), low, high)
            low, high = max(low, collected(log, port) + 1), min(high, last_sent(log, port))
            receivers = log.fetch("SELECT rec_operator, rec_port FROM link WHERE operator = ? AND port = ?", *port)
            return [entry for row in sorted(receivers) for entry in _entries(log, Port(*row), low, high)]


def version_of(log: Transaction) -> int | None:
    """Return the version that the tables of a log say they are of."""
    rows = log.fetch("SELECT value FROM meta WHERE key = 'schema_version'")
    return next((int(text) for (text,) in rows), None)


def check_known(version: int | None, log: str) -> None:
    """Refuse tables that are none of a log, or not of the version that is read; None where they do not say."""
    if version is None:
        raise WrongLog(f"{log} is not a log of Clew; name one that `clew run` has made")
    if version > SCHEMA_VERSION:
        raise NewerLog(version, SCHEMA_VERSION, log)
    if version < SCHEMA_VERSION:
        raise StoreFailed(
            f"the log {log} has schema version {version}, and who only reads it does not bring it to {SCHEMA_VERSION}",
            "ask for `clew status` of its pipeline once, which does",
        )


def _entries(log: Transaction, receiver: Port, low: int, high: int) -> Iterator[Entry]:
    """Yield what became of events at one receiver: those that it took come first (C1)."""
    done = read_done(log, receiver.operator)
    taken = low - 1
    for taken, input_set in taken_between(log, receiver, low, high):
        yield Entry(taken, receiver, input_set, _status(input_set == NONE_SET or input_set in done))
    for number in range(taken + 1, high + 1):
        yield Entry(number, receiver, None, "undone")


def _writes(log: Transaction, connection: Port, low: int, high: int) -> list[Entry]:
    done = read_done_writes(log, connection.operator).get(connection.name, Intervals())
    numbers = sorted(number for (number,) in log.fetch(_WRITES, *connection, low, high))
    return [Entry(number, connection, None, _status(number in done)) for number in numbers]


def _status(is_done: bool) -> Status:
    return "done" if is_done else "undone"
