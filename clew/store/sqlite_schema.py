"""The paper's tables as views over a log in SQLite."""

from clew.store.tables_sql import ALL_LINEAGE
from clew.store.views_sql import EVENT_LOG_ROWS

#: LOG.io, Section 3.2, for anyone with a SQLite shell. `Store.table` gives the same rows.
VIEWS = (
    """
CREATE VIEW EVENT_LOG (event_id, status, send_op, send_p, rec_op, rec_p, inset_id) AS
WITH event AS (
    SELECT s.operator, s.port, s.first + j.key / 2 AS number FROM sent s, json_each(s.headers) j
    LEFT JOIN collected c ON c.operator = s.operator AND c.port = s.port
    WHERE j.key % 2 = 0 AND s.first + j.key / 2 > coalesce(c.upto, 0)
"""
    + EVENT_LOG_ROWS
    + """
CREATE VIEW EVENT_DATA (event_id, send_op, send_p, header, body) AS
WITH event AS (
    SELECT s.operator, s.port, s.first + j.key / 2 AS number,
        max(CASE j.key % 2 WHEN 0 THEN j.value END) AS record_count,
        max(CASE j.key % 2 WHEN 1 THEN j.value END) AS size
    FROM sent s, json_each(s.headers) j
    GROUP BY s.operator, s.port, s.first + j.key / 2
), part AS (
    SELECT b.rowid AS run, b.operator, b.port, b.first + j.key AS number, j.value AS length,
        sum(j.value) OVER (PARTITION BY b.rowid ORDER BY j.key) - j.value AS before
    FROM body b, json_each(b.lengths) j
)
SELECT e.number, e.operator, e.port, '[' || e.record_count || ', ' || e.size || ', false]',
    CASE WHEN b.file IS NULL THEN substr(b.data, p.before + 1, p.length)
        ELSE 'file:' || b.file || '@' || (b.start + p.before) || '+' || p.length END
FROM event e
LEFT JOIN part p ON p.operator = e.operator AND p.port = e.port AND p.number = e.number
LEFT JOIN body b ON b.rowid = p.run
LEFT JOIN collected c ON c.operator = e.operator AND c.port = e.port
WHERE e.record_count >= 0 AND e.number > coalesce(c.upto, 0)
UNION ALL
SELECT number, operator, NULL, NULL,
    CASE WHEN file IS NULL THEN data ELSE 'file:' || file || '@' || start || '+' || size END
FROM write_body WHERE part = 0
UNION ALL
SELECT action, operator, connection, NULL,
    CASE WHEN file IS NULL THEN data ELSE 'file:' || file || '@' || start || '+' || size END
FROM read_event WHERE lengths IS NOT NULL;

CREATE VIEW READ_ACTION (action_id, status, op_id, conn_id, action_desc) AS
SELECT action, CASE complete WHEN 1 THEN 'complete' ELSE 'incomplete' END, operator, connection, description
FROM action;

CREATE VIEW STATE (state_id, op_id, state) AS
SELECT state_id, operator, '{"context":' || context || ',"state":' || state || '}' FROM latest_state
UNION ALL
SELECT state_id, operator, state FROM state_event;

CREATE VIEW EVENT_LINEAGE (event_id, send_op, send_p, inset_id) AS
WITH RECURSIVE stretch AS (
    SELECT l.operator, l.port, json_extract(j.value, '$[0]') AS outputs,
        json_extract(j.value, '$[0]') * json_extract(j.value, '$[1]') AS events,
        l.first + sum(json_extract(j.value, '$[0]') * json_extract(j.value, '$[1]'))
            OVER (PARTITION BY l.operator, l.port, l.first, l.input_set ORDER BY j.key)
            - json_extract(j.value, '$[0]') * json_extract(j.value, '$[1]') AS number,
        l.input_set + sum(json_extract(j.value, '$[1]'))
            OVER (PARTITION BY l.operator, l.port, l.first, l.input_set ORDER BY j.key)
            - json_extract(j.value, '$[1]') AS input_set
    FROM """
    + ALL_LINEAGE
    + """ l, json_each(l.counts) j
), pair AS (
    SELECT operator, port, outputs, events, number, input_set, 0 AS i FROM stretch WHERE events > 0
    UNION ALL
    SELECT operator, port, outputs, events, number, input_set, i + 1 FROM pair WHERE i + 1 < events
)
SELECT p.number + p.i, p.operator, p.port, p.input_set + p.i / p.outputs
FROM pair p LEFT JOIN collected c ON c.operator = p.operator AND c.port = p.port
WHERE p.number + p.i > coalesce(c.upto, 0);
"""
)
