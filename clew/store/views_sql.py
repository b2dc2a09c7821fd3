"""What the view EVENT_LOG is in every dialect, once a log's runs are events one by one."""

#: Goes on from `WITH event AS (SELECT operator, port, number ...`: one row per event, receiver and Input Set.
EVENT_LOG_ROWS = """\
), entry AS (
    SELECT e.number, e.operator, e.port, l.rec_operator, l.rec_port,
        CASE WHEN a.size > 0 THEN a.input_set + (a.skip + e.number - a.first) / a.size ELSE a.input_set END AS input_set
    FROM event e
    LEFT JOIN link l ON l.operator = e.operator AND l.port = e.port
    LEFT JOIN ack a ON a.operator = l.rec_operator AND a.port = l.rec_port AND e.number < a.first + a.count
        AND a.first = (
            SELECT max(b.first) FROM ack b
            WHERE b.operator = l.rec_operator AND b.port = l.rec_port AND b.first <= e.number
        )
    UNION ALL
    SELECT e.number, e.operator, e.port, l.rec_operator, l.rec_port, r.input_set
    FROM event e
    JOIN link l ON l.operator = e.operator AND l.port = e.port
    JOIN rejoined r ON r.operator = l.rec_operator AND r.port = l.rec_port
        AND r.first <= e.number AND e.number < r.first + r.count
)
SELECT number,
    CASE
        WHEN rec_operator IS NULL OR input_set = 0 THEN 'done'
        WHEN EXISTS (
            SELECT 1 FROM done d
            WHERE d.operator = rec_operator AND d.first <= input_set AND input_set < d.first + d.count
        ) THEN 'done'
        ELSE 'undone'
    END,
    operator, port, rec_operator, rec_port, input_set
FROM entry
UNION ALL
SELECT w.number,
    CASE WHEN EXISTS (
        SELECT 1 FROM done_write d WHERE d.operator = w.operator AND d.connection = w.connection
            AND d.first <= w.number AND w.number < d.first + d.count
    ) THEN 'done' ELSE 'undone' END,
    w.operator, NULL, w.operator, w.connection, NULL
FROM write_action w
UNION ALL
SELECT action, CASE done WHEN 1 THEN 'done' ELSE 'undone' END, operator, connection, NULL, NULL, input_set
FROM read_event
UNION ALL
SELECT s.state_id,
    CASE WHEN EXISTS (
        SELECT 1 FROM done d
        WHERE d.operator = s.operator AND d.first <= s.input_set AND s.input_set < d.first + d.count
    ) THEN 'done' ELSE 'undone' END,
    s.operator, NULL, NULL, NULL, s.input_set
FROM state_event s;
"""
