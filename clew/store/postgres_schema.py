"""The tables of a log in PostgreSQL, the paper's tables as views over them, and the fence."""

from clew.store import tables_sql
from clew.store.views_sql import EVENT_LOG_ROWS


def _translated(tables: str) -> str:
    return tables.replace("INTEGER", "BIGINT").replace("BLOB", "BYTEA").replace(" WITHOUT ROWID", "")


TABLES = (
    _translated(tables_sql.TABLES)
    # Counts the operator's commits, so that a process knows whether the ledger it keeps is still the log's.
    + "ALTER TABLE operator ADD COLUMN version BIGINT NOT NULL DEFAULT 0;\n"
    # Bodies are Arrow or compressed already: trying to compress them again is time lost.
    + "".join(
        f"ALTER TABLE {t} ALTER COLUMN data SET STORAGE EXTERNAL;\n" for t in ("body", "write_body", "read_event")
    )
)

#: What a log of a version lacks.
UPGRADES = {version: _translated(lacks) + tables_sql.DROP_VIEWS for version, lacks in tables_sql.UPGRADES.items()}

#: F1: locks the operator's row first, compares, and counts the commit. A function, so that the server refuses by
#: itself: what follows in the same round trip is skipped, and nobody waits for the client in between.
FENCE = """
CREATE FUNCTION fence(operator_name TEXT, writer BIGINT, seen BIGINT, synced BOOLEAN) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    current_incarnation BIGINT;
    current_version BIGINT;
BEGIN
    IF NOT synced THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    UPDATE operator SET version = version + 1 WHERE name = operator_name
        RETURNING incarnation, version INTO current_incarnation, current_version;
    IF current_incarnation IS DISTINCT FROM writer THEN
        RAISE EXCEPTION '%', coalesce(current_incarnation, 0) USING ERRCODE = 'CLW01';
    END IF;
    IF current_version <> seen + 1 THEN
        RAISE EXCEPTION '%', current_version USING ERRCODE = 'CLW02';
    END IF;
END $$;
"""

#: LOG.io, Section 3.2, for anyone with psql. `Store.table` gives the same rows; here a body in a file is told as
#: the bytes of its place, since a column has one type.
VIEWS = (
    """
CREATE VIEW EVENT_LOG (event_id, status, send_op, send_p, rec_op, rec_p, inset_id) AS
WITH event AS (
    SELECT s.operator, s.port, n.number FROM sent s
    LEFT JOIN collected c ON c.operator = s.operator AND c.port = s.port
    CROSS JOIN LATERAL generate_series(greatest(s.first, coalesce(c.upto, 0) + 1), s.first + s.count - 1) AS n (number)
"""
    + EVENT_LOG_ROWS
    + """
CREATE VIEW EVENT_DATA (event_id, send_op, send_p, header, body) AS
WITH event AS (
    SELECT s.operator, s.port, s.first + h.i AS number, h.record_count, h.size FROM sent s
    CROSS JOIN LATERAL (
        SELECT (j.ordinality - 1) / 2 AS i,
            max(j.value::BIGINT) FILTER (WHERE j.ordinality % 2 = 1) AS record_count,
            max(j.value::BIGINT) FILTER (WHERE j.ordinality % 2 = 0) AS size
        FROM json_array_elements_text(s.headers::JSON) WITH ORDINALITY AS j (value, ordinality)
        GROUP BY (j.ordinality - 1) / 2
    ) h
), part AS (
    SELECT b.operator, b.port, b.first + p.i AS number, CASE
        WHEN b.file IS NULL THEN substring(b.data FROM (p.before + 1)::INT FOR p.length::INT)
        ELSE convert_to('file:' || b.file || '@' || (b.start + p.before) || '+' || p.length, 'UTF8') END AS body
    FROM body b
    CROSS JOIN LATERAL (
        SELECT j.ordinality - 1 AS i, j.value::BIGINT AS length,
            (sum(j.value::BIGINT) OVER (ORDER BY j.ordinality))::BIGINT - j.value::BIGINT AS before
        FROM json_array_elements_text(b.lengths::JSON) WITH ORDINALITY AS j (value, ordinality)
    ) p
)
SELECT e.number, e.operator, e.port, '[' || e.record_count || ', ' || e.size || ', false]', p.body
FROM event e
LEFT JOIN part p ON p.operator = e.operator AND p.port = e.port AND p.number = e.number
LEFT JOIN collected c ON c.operator = e.operator AND c.port = e.port
WHERE e.record_count >= 0 AND e.number > coalesce(c.upto, 0)
UNION ALL
SELECT number, operator, NULL, NULL,
    CASE WHEN file IS NULL THEN data ELSE convert_to('file:' || file || '@' || start || '+' || size, 'UTF8') END
FROM write_body WHERE part = 0
UNION ALL
SELECT action, operator, connection, NULL,
    CASE WHEN file IS NULL THEN data ELSE convert_to('file:' || file || '@' || start || '+' || size, 'UTF8') END
FROM read_event WHERE lengths IS NOT NULL;

CREATE VIEW READ_ACTION (action_id, status, op_id, conn_id, action_desc) AS
SELECT action, CASE complete WHEN 1 THEN 'complete' ELSE 'incomplete' END, operator, connection, description
FROM action;

CREATE VIEW STATE (state_id, op_id, state) AS
SELECT state_id, operator, '{"context":' || context || ',"state":' || state || '}' FROM latest_state
UNION ALL
SELECT state_id, operator, state FROM state_event;

CREATE VIEW EVENT_LINEAGE (event_id, send_op, send_p, inset_id) AS
SELECT l.first + s.events_before + g.i, l.operator, l.port, l.input_set + s.sets_before + g.i / s.outputs
FROM """
    + tables_sql.ALL_LINEAGE
    + """ l
CROSS JOIN LATERAL (
    SELECT j.outputs, j.outputs * j.repeat AS events,
        (sum(j.outputs * j.repeat) OVER (ORDER BY j.ordinality))::BIGINT - j.outputs * j.repeat AS events_before,
        (sum(j.repeat) OVER (ORDER BY j.ordinality))::BIGINT - j.repeat AS sets_before
    FROM (
        SELECT (pair ->> 0)::BIGINT AS outputs, (pair ->> 1)::BIGINT AS repeat, ordinality
        FROM json_array_elements(l.counts::JSON) WITH ORDINALITY AS c (pair, ordinality)
    ) j
) s
CROSS JOIN LATERAL generate_series(0, s.events - 1) AS g (i)
LEFT JOIN collected c ON c.operator = l.operator AND c.port = l.port
WHERE l.first + s.events_before + g.i > coalesce(c.upto, 0);
"""
)
