"""The tables of a log in SQL, in the words of SQLite; PostgreSQL's differ in the names of types alone."""

#: Runs are rows; nothing in them is updated, so that a commit costs a few inserts whatever the turn's size.
TABLES_OF_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE operator (name TEXT PRIMARY KEY, status TEXT NOT NULL, incarnation INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE link (
    operator TEXT NOT NULL, port TEXT NOT NULL, rec_operator TEXT NOT NULL, rec_port TEXT NOT NULL,
    PRIMARY KEY (rec_operator, rec_port)
) WITHOUT ROWID;
CREATE INDEX link_sender ON link (operator, port);
CREATE TABLE port_schema (
    operator TEXT NOT NULL, port TEXT NOT NULL, schema BLOB NOT NULL, PRIMARY KEY (operator, port)
) WITHOUT ROWID;
-- Events of a port up to this number are collected, also those that share a row with later ones; the write actions
-- of a connection, under the name `writes:CONNECTION`.
CREATE TABLE collected (
    operator TEXT NOT NULL, port TEXT NOT NULL, upto INTEGER NOT NULL, PRIMARY KEY (operator, port)
) WITHOUT ROWID;
CREATE TABLE sent (
    operator TEXT NOT NULL, port TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    bytes INTEGER NOT NULL, headers TEXT NOT NULL, facts TEXT,
    PRIMARY KEY (operator, port, first)
);
CREATE TABLE body (
    operator TEXT NOT NULL, port TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    size INTEGER NOT NULL, lengths TEXT NOT NULL, checksums TEXT NOT NULL, file TEXT, start INTEGER NOT NULL, data BLOB,
    PRIMARY KEY (operator, port, first)
);
CREATE INDEX body_file ON body (file) WHERE file IS NOT NULL;
-- Size 0: all events belong to the Input Set. Else every `size` events have the next one, and `skip` came before.
CREATE TABLE ack (
    operator TEXT NOT NULL, port TEXT NOT NULL, first INTEGER NOT NULL, part INTEGER NOT NULL,
    count INTEGER NOT NULL, seq INTEGER NOT NULL,
    input_set INTEGER NOT NULL, size INTEGER NOT NULL, skip INTEGER NOT NULL,
    PRIMARY KEY (operator, port, first, part)
) WITHOUT ROWID;
CREATE TABLE input_set (
    operator TEXT NOT NULL, input_set INTEGER NOT NULL, label TEXT NOT NULL, PRIMARY KEY (operator, input_set)
) WITHOUT ROWID;
CREATE TABLE done (
    operator TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (operator, first)
) WITHOUT ROWID;
CREATE TABLE lineage (
    operator TEXT NOT NULL, port TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    input_set INTEGER NOT NULL, counts TEXT NOT NULL
);
CREATE INDEX lineage_event ON lineage (operator, port, first);
CREATE TABLE latest_state (
    operator TEXT PRIMARY KEY, state_id INTEGER NOT NULL, context TEXT NOT NULL, state TEXT NOT NULL
);
CREATE TABLE state_event (
    operator TEXT NOT NULL, state_id INTEGER NOT NULL, input_set INTEGER NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (operator, state_id)
);
CREATE TABLE action (
    operator TEXT NOT NULL, connection TEXT NOT NULL, action INTEGER NOT NULL, complete INTEGER NOT NULL,
    description TEXT NOT NULL, PRIMARY KEY (operator, connection, action)
);
CREATE TABLE read_event (
    operator TEXT NOT NULL, connection TEXT NOT NULL, action INTEGER NOT NULL, done INTEGER NOT NULL,
    input_set INTEGER, count INTEGER, size INTEGER, lengths TEXT, checksums TEXT, file TEXT, start INTEGER, data BLOB,
    PRIMARY KEY (operator, connection, action)
);
CREATE TABLE write_action (
    operator TEXT NOT NULL, connection TEXT NOT NULL, number INTEGER NOT NULL, events TEXT NOT NULL,
    PRIMARY KEY (operator, connection, number)
);
CREATE TABLE write_body (
    operator TEXT NOT NULL, connection TEXT NOT NULL, number INTEGER NOT NULL, part INTEGER NOT NULL,
    count INTEGER NOT NULL, size INTEGER NOT NULL, lengths TEXT NOT NULL, checksums TEXT NOT NULL,
    file TEXT, start INTEGER NOT NULL, data BLOB,
    PRIMARY KEY (operator, connection, number, part)
);
CREATE INDEX write_body_file ON write_body (file) WHERE file IS NOT NULL;
CREATE TABLE done_write (
    operator TEXT NOT NULL, connection TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (operator, connection, first)
) WITHOUT ROWID;
"""

#: What version 2 has and version 1 has not.
ADDED_IN_2 = """
-- Events that joined a further Input Set after they were taken, because it took in another one.
CREATE TABLE rejoined (
    operator TEXT NOT NULL, port TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, seq INTEGER NOT NULL,
    input_set INTEGER NOT NULL, PRIMARY KEY (operator, port, first, input_set)
) WITHOUT ROWID;
-- What the clock made an operator decide, in the order of the events that it took.
CREATE TABLE decision (
    operator TEXT NOT NULL, seq INTEGER NOT NULL, decision TEXT NOT NULL, PRIMARY KEY (operator, seq)
) WITHOUT ROWID;
-- What is remembered of keys; a turn writes those that it touched.
CREATE TABLE keyed_state (
    operator TEXT NOT NULL, function TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (operator, function, key)
) WITHOUT ROWID;
-- What functions fail on, until somebody decides.
CREATE TABLE aside (
    operator TEXT NOT NULL, number INTEGER NOT NULL, input_set INTEGER NOT NULL, label TEXT NOT NULL,
    state TEXT NOT NULL, events TEXT NOT NULL, records TEXT, error TEXT NOT NULL, status TEXT NOT NULL,
    retried_as INTEGER, PRIMARY KEY (operator, number)
) WITHOUT ROWID;
"""

#: What version 3 has and version 2 has not: the ways that lineage takes through the log, and what reads asked for.
ADDED_IN_3 = """
CREATE INDEX ack_set ON ack (operator, input_set);
CREATE INDEX ack_run ON ack (operator, input_set) WHERE size > 0;
CREATE INDEX rejoined_set ON rejoined (operator, input_set);
CREATE INDEX lineage_set ON lineage (operator, port, input_set);
CREATE INDEX read_event_set ON read_event (operator, input_set) WHERE input_set IS NOT NULL;
CREATE INDEX state_event_set ON state_event (operator, input_set);
ALTER TABLE read_event ADD COLUMN description TEXT;
-- When, in milliseconds since the epoch; null in logs from before.
ALTER TABLE sent ADD COLUMN at INTEGER;
ALTER TABLE write_action ADD COLUMN at INTEGER;
"""

#: What version 4 has and version 3 has not.
ADDED_IN_4 = """
-- The last Input Set of an operator that has lost events to collection: of those it took on a port, or made there.
CREATE TABLE worn (
    operator TEXT NOT NULL, side TEXT NOT NULL, port TEXT NOT NULL, input_set INTEGER NOT NULL,
    PRIMARY KEY (operator, side, port)
) WITHOUT ROWID;
"""

#: A log from before does not say which Input Sets collection has worn, so all up to now may be.
WORN_BEFORE_4 = """
INSERT INTO worn SELECT l.rec_operator, 'taken', l.rec_port, d.last FROM collected c
    JOIN link l ON l.operator = c.operator AND l.port = c.port
    JOIN (SELECT operator, max(first + count - 1) AS last FROM done GROUP BY operator) d
        ON d.operator = l.rec_operator;
INSERT INTO worn SELECT c.operator, 'made', c.port, d.last FROM collected c
    JOIN (SELECT operator, max(first + count - 1) AS last FROM done GROUP BY operator) d ON d.operator = c.operator;
"""

#: What version 5 has and version 4 has not.
ADDED_IN_5 = """
-- Lineage whose Input Sets are not before those of the row before (O1): one tree, and nothing else to be kept up.
-- All other lineage is in the table lineage, with an index for each way that is asked.
CREATE TABLE ordered_lineage (
    operator TEXT NOT NULL, port TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    input_set INTEGER NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (operator, port, first)
) WITHOUT ROWID;
-- Who has which role in the run: its supervisor, a group. Times are milliseconds since the epoch, by the log's clock.
CREATE TABLE process (
    role TEXT PRIMARY KEY, holder TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, starts INTEGER NOT NULL,
    seen INTEGER NOT NULL, until INTEGER NOT NULL, asked TEXT NOT NULL, report TEXT NOT NULL
) WITHOUT ROWID;
"""

#: What version 6 has and version 5 has not: the ways to what was set aside of an Input Set, or is tried again as one.
ADDED_IN_6 = """
CREATE INDEX aside_set ON aside (operator, input_set);
CREATE INDEX aside_retried ON aside (operator, retried_as) WHERE retried_as IS NOT NULL;
"""

TABLES = TABLES_OF_1 + ADDED_IN_2 + ADDED_IN_3 + ADDED_IN_4 + ADDED_IN_5 + ADDED_IN_6

_UPGRADE_4 = ADDED_IN_5 + ADDED_IN_6
_UPGRADE_3 = ADDED_IN_4 + WORN_BEFORE_4 + _UPGRADE_4
#: What a log of a version lacks.
UPGRADES = {
    1: ADDED_IN_2 + ADDED_IN_3 + _UPGRADE_3,
    2: ADDED_IN_3 + _UPGRADE_3,
    3: _UPGRADE_3,
    4: _UPGRADE_4,
    5: ADDED_IN_6,
}

#: All lineage, ordered or not.
ALL_LINEAGE = """(SELECT operator, port, first, input_set, counts FROM ordered_lineage
    UNION ALL SELECT operator, port, first, input_set, counts FROM lineage)"""

#: The views are made again, because they look at the new tables too.
DROP_VIEWS = "".join(
    f"DROP VIEW {view};\n" for view in ("EVENT_LOG", "EVENT_DATA", "READ_ACTION", "STATE", "EVENT_LINEAGE")
)
