"""What the settings are tried on: texts over the tables of `nasty_tables`, in groups of what they are about.

Each gives the same rows whatever order its input has: extremes and counts of everything, sums of what does not
overflow, LIMIT only behind a total order.
"""

from __future__ import annotations

DISTINCT = [
    *(
        f"SELECT k, COUNT(DISTINCT {column}) AS n FROM f GROUP BY k"
        for column in ("g", "big", "y", "s", "q", "d", "m", "w", "x", "r", "ts", "k")
    ),
    "SELECT COUNT(DISTINCT big) FROM f",
    "SELECT COUNT(DISTINCT g), COUNT(*) FROM e",
    "SELECT g, COUNT(DISTINCT big), SUM(b) FROM e GROUP BY g",
    "SELECT COUNT(DISTINCT g), SUM(DISTINCT s), AVG(DISTINCT b), MIN(big), MAX(w) FROM f",
    "SELECT k, COUNT(DISTINCT big), COUNT(*), SUM(b), MIN(x), MAX(x), AVG(m) FROM f GROUP BY k",
    "SELECT k, COUNT(DISTINCT g), COUNT(DISTINCT big), COUNT(DISTINCT d) FROM h GROUP BY k",
    "SELECT k, q, COUNT(DISTINCT g, s), COUNT(DISTINCT m) FROM f GROUP BY k, q",
    "SELECT COUNT(DISTINCT g), COUNT(DISTINCT k), COUNT(DISTINCT x), COUNT(*) FROM h",
    "SELECT k, COUNT(DISTINCT g) FILTER (WHERE q), COUNT(DISTINCT g), SUM(s) FILTER (WHERE NOT q) FROM f GROUP BY k",
    "SELECT k, COUNT(DISTINCT s) FILTER (WHERE g > 0), COUNT(DISTINCT y) FILTER (WHERE q) FROM h GROUP BY k",
    "SELECT g, SUM(DISTINCT s), SUM(DISTINCT m), AVG(DISTINCT m), AVG(DISTINCT b), COUNT(DISTINCT b) FROM f GROUP BY g",
    "SELECT x, COUNT(DISTINCT r), SUM(DISTINCT r) FROM f GROUP BY x",
    "SELECT r, d, COUNT(DISTINCT x), MIN(k), MAX(k) FROM f GROUP BY r, d",
    "SELECT g, MIN(DISTINCT big), MAX(DISTINCT big), COUNT(DISTINCT g) FROM f GROUP BY g",
    "SELECT g % 2 AS p, COUNT(DISTINCT UPPER(k)), COUNT(DISTINCT big % 100) FROM f GROUP BY g % 2",
    "SELECT k, COUNT(DISTINCT g) AS n FROM h WHERE s <> 0 GROUP BY k HAVING n > 1 ORDER BY n, k LIMIT 3",
    "SELECT k, COUNT(DISTINCT big), FIRST_VALUE(x ORDER BY id), LAST_VALUE(k ORDER BY id) FROM f GROUP BY k",
    "SELECT g, COUNT(DISTINCT id), COUNT(DISTINCT q), COUNT(q) FROM o GROUP BY g",
    "SELECT DISTINCT g, k FROM h",
    "SELECT DISTINCT x FROM f",
    "SELECT g, COUNT(DISTINCT d), COUNT(DISTINCT ts), MIN(ts), MAX(d) FROM h GROUP BY g",
    "SELECT COUNT(DISTINCT m), SUM(DISTINCT m), AVG(m), COUNT(DISTINCT w) FROM f",
]

PLAIN_AGGREGATES = [
    "SELECT k, COUNT(*), COUNT(x), SUM(b), AVG(b), MIN(big), MAX(big) FROM f GROUP BY k",
    "SELECT g, SUM(m), AVG(m), SUM(x), AVG(r), MIN(r), MAX(x) FROM h GROUP BY g",
    "SELECT x, r, COUNT(*) FROM f GROUP BY x, r",
    "SELECT COUNT(*), SUM(b), AVG(x), MIN(k), MAX(ts) FROM e",
    "SELECT k, COUNT(*) AS n FROM h GROUP BY k HAVING n > 1 ORDER BY n DESC, k LIMIT 4",
    "SELECT UPPER(k), g % 2, SUM(s) FROM f WHERE q GROUP BY UPPER(k), g % 2",
    "SELECT d, MIN(m), MAX(m), SUM(y) FILTER (WHERE s > 0) FROM f GROUP BY d",
    "SELECT g, FIRST_VALUE(big ORDER BY id), LAST_VALUE(m ORDER BY id), COUNT(*) FROM h GROUP BY g",
]

EAGER = [
    *(
        f"SELECT t.g, COUNT(*), COUNT(t.x), SUM(t.b), SUM(u.v), MIN(t.big), MAX(u.x) "
        f"FROM h t {kind} JOIN u ON t.g = u.g GROUP BY t.g"
        for kind in ("INNER", "LEFT", "RIGHT", "FULL")
    ),
    *(
        f"SELECT u.name, COUNT(*), SUM(t.b), AVG(t.b), COUNT(u.v), AVG(u.v), MIN(t.k) "
        f"FROM h t {kind} JOIN u ON t.g = u.g GROUP BY u.name"
        for kind in ("INNER", "LEFT", "RIGHT")
    ),
    *(
        f"SELECT t.k, u.k AS uk, COUNT(*), SUM(t.s), SUM(u.v) FROM f t {kind} JOIN u ON t.g = u.g GROUP BY t.k, u.k"
        for kind in ("INNER", "LEFT")
    ),
    *(
        f"SELECT COUNT(*), SUM(t.b), SUM(u.v), AVG(t.s), MIN(u.name), MAX(t.d) FROM f t {kind} JOIN u ON t.g = u.g"
        for kind in ("INNER", "LEFT", "RIGHT", "FULL")
    ),
    "SELECT COUNT(*), SUM(t.b), SUM(u.v) FROM e t JOIN u ON t.g = u.g",
    "SELECT COUNT(*), SUM(t.b), SUM(u.v), COUNT(u.v) FROM u LEFT JOIN e t ON t.g = u.g",
    "SELECT u.g, COUNT(t.id), SUM(t.b) FROM u LEFT JOIN e t ON t.g = u.g GROUP BY u.g",
    "SELECT t.g, t.k, COUNT(*), SUM(t.s), SUM(u.v) FROM f t JOIN u ON t.g = u.g AND t.k = u.k GROUP BY t.g, t.k",
    "SELECT t.g, COUNT(*), SUM(t.b) FROM f t LEFT JOIN u ON t.g = u.g AND t.k = u.k GROUP BY t.g",
    "SELECT t.g, COUNT(*), SUM(t.b), MIN(t.big) FROM f t LEFT SEMI JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT t.k, COUNT(*), SUM(t.b), COUNT(DISTINCT t.big) FROM f t LEFT ANTI JOIN u ON t.g = u.g GROUP BY t.k",
    "SELECT COUNT(*), SUM(t.s) FROM h t LEFT SEMI JOIN u ON t.k = u.k",
    "SELECT t.g, COUNT(DISTINCT t.big), COUNT(DISTINCT u.name) FROM h t JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT u.name, COUNT(DISTINCT t.big), COUNT(*), SUM(t.b) FROM h t JOIN u ON t.g = u.g GROUP BY u.name",
    "SELECT t.k, COUNT(DISTINCT u.v) FROM f t LEFT JOIN u ON t.g = u.g GROUP BY t.k",
    "SELECT COUNT(DISTINCT t.k), COUNT(DISTINCT u.k) FROM f t JOIN u ON t.g = u.g",
    "SELECT t.x, COUNT(*), SUM(t.b), SUM(u.v) FROM f t JOIN u ON t.x = u.x GROUP BY t.x",
    "SELECT t.k, SUM(t.x), SUM(u.x), SUM(t.r) FROM f t JOIN u ON t.g = u.g WHERE t.x < 5 AND u.x < 5 GROUP BY t.k",
    "SELECT t.g, SUM(t.m), AVG(t.m), SUM(u.m), AVG(u.m), MIN(u.m) FROM f t JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT u.name, SUM(t.m), COUNT(t.m), AVG(u.m) FROM h t LEFT JOIN u ON t.g = u.g GROUP BY u.name",
    "SELECT t.g, SUM(t.s * u.v), SUM(t.s + u.v), COUNT(*) FROM f t JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT t.g, COUNT(*) FILTER (WHERE t.q), SUM(u.v) FILTER (WHERE v > 0) FROM f t JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT t.g, SUM(t.b), COUNT(*) FROM f t JOIN u ON t.g = u.g AND t.x < u.x GROUP BY t.g",
    "SELECT t.g, SUM(t.b) FROM f t JOIN u ON t.g = u.g WHERE s > 0 AND v > 0 GROUP BY t.g HAVING MIN(v) > 1",
    "SELECT t.g + 1, COUNT(*), SUM(t.b) FROM f t JOIN u ON t.g = u.g GROUP BY t.g + 1",
    "SELECT t.k, COUNT(*), SUM(t.b) FROM f t JOIN u ON t.g + 1 = u.g * 1 GROUP BY t.k",
    "SELECT t.g, COUNT(*), SUM(t.b), SUM(v.v) FROM f t JOIN u ON t.g = u.g JOIN u v ON t.g = v.g GROUP BY t.g",
    "SELECT t.k, COUNT(*), SUM(z.s) FROM h t JOIN f z ON t.k = z.k GROUP BY t.k",
    "SELECT t.g, COUNT(*), AVG(t.b), AVG(z.s) FROM h t JOIN h z ON t.g = z.g GROUP BY t.g ORDER BY t.g LIMIT 3",
    "SELECT t.g, FIRST_VALUE(t.x ORDER BY t.id), COUNT(*) FROM f t JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT t.d, COUNT(*), SUM(u.v), MIN(t.y) FROM f t JOIN u ON t.d = u.d GROUP BY t.d",
]

ROWS_OF_JOINS = [
    *(
        f"SELECT t.id, t.g, t.x, u.name, u.v FROM h t {kind} JOIN u ON t.g = u.g"
        for kind in ("INNER", "LEFT", "RIGHT", "FULL")
    ),
    "SELECT t.id, t.k FROM h t LEFT SEMI JOIN u ON t.k = u.k",
    "SELECT t.id, t.k FROM h t LEFT ANTI JOIN u ON t.k = u.k",
    *(f"SELECT t.id, u.name FROM h t {kind} JOIN u ON t.g = u.g AND t.k = u.k" for kind in ("INNER", "LEFT", "FULL")),
    *(
        f"SELECT t.id, u.name FROM f t {kind} JOIN u ON t.g = u.g AND (t.x < u.x OR u.v > 2)"
        for kind in ("INNER", "LEFT", "RIGHT", "FULL")
    ),
    "SELECT t.id FROM h t LEFT SEMI JOIN u ON t.g = u.g AND t.x < u.x",
    "SELECT t.id FROM h t LEFT ANTI JOIN u ON t.g = u.g AND t.x < u.x",
    "SELECT t.id, u.name FROM f t JOIN u ON t.x = u.x",
    "SELECT t.id, u.name FROM f t LEFT JOIN u ON t.x = u.x",
    "SELECT t.id, u.name FROM f t JOIN u ON t.m = u.m",
    "SELECT t.id, u.name FROM f t LEFT JOIN u ON t.d = u.d",
    "SELECT t.id, u.name FROM e t LEFT JOIN u ON t.g = u.g",
    "SELECT t.id, u.name FROM e t RIGHT JOIN u ON t.g = u.g",
    "SELECT t.id, z.id AS other FROM h t JOIN h z ON t.g = z.g AND t.k = z.k WHERE t.id < z.id AND z.id < 60",
    "SELECT t.id, u.name, v.v FROM h t JOIN u ON t.g = u.g LEFT JOIN u v ON t.k = v.k",
    "SELECT t.id, u.name FROM h t JOIN u ON UPPER(t.k) = UPPER(u.k) ORDER BY t.id, u.name LIMIT 9",
]

WHOLE_QUERIES = [
    "SELECT a.g, COUNT(*), SUM(n) FROM (SELECT g, k, COUNT(DISTINCT big) AS n FROM f GROUP BY g, k) AS a GROUP BY a.g",
    "SELECT t.id, a.n FROM h t JOIN (SELECT g, COUNT(*) AS n FROM h GROUP BY g) AS a ON a.g = t.g",
    "WITH a AS (SELECT g, COUNT(DISTINCT k) AS n FROM h GROUP BY g) SELECT x.n, y.n AS m FROM a x JOIN a y USING (g)",
    "SELECT k, COUNT(DISTINCT g) FROM (SELECT k, g FROM f UNION ALL SELECT k, g FROM h) AS a GROUP BY k",
    "SELECT u.name, COUNT(*), SUM(a.b) FROM (SELECT DISTINCT g, b FROM f) AS a JOIN u ON u.g = a.g GROUP BY u.name",
    "SELECT COUNT(DISTINCT a.k), COUNT(*) FROM (SELECT k, g FROM f ORDER BY id LIMIT 20) AS a LEFT JOIN u ON u.g = a.g",
    "SELECT g, COUNT(*) FROM f WHERE q GROUP BY g UNION ALL SELECT g, SUM(v) FROM u GROUP BY g",
    "SELECT DISTINCT COUNT(*), COUNT(DISTINCT g) FROM h GROUP BY k",
    "SELECT t.g, COUNT(DISTINCT t.big), COUNT(*) FROM f t, u WHERE t.g = u.g AND u.v > 0 GROUP BY t.g",
]

NESTED = [
    "SELECT g, COUNT(*) FROM n GROUP BY g",
    "SELECT COUNT(DISTINCT g) FROM n",
]

OVERFLOWS = [
    "SELECT k, SUM(big) FROM f GROUP BY k",
    "SELECT SUM(DISTINCT big), COUNT(DISTINCT big) FROM f",
    "SELECT k, SUM(big), COUNT(DISTINCT g) FROM f GROUP BY k",
    "SELECT t.g, SUM(t.big), COUNT(*) FROM h t JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT SUM(t.big + u.v), COUNT(*) FROM h t JOIN u ON t.g = u.g",
    "SELECT k, SUM(w), COUNT(DISTINCT w) FROM f GROUP BY k",
    "SELECT g, COUNT(DISTINCT 1 / s) FROM f GROUP BY g",
    "SELECT COUNT(DISTINCT CAST(k AS INT)) FROM f",
    "SELECT t.g, SUM(t.b / t.s) FROM f t JOIN u ON t.g = u.g GROUP BY t.g",
]
"""What ANSI mode makes an error of, or nearly: under every setting the same."""

GROUPS = {
    "distinct": DISTINCT,
    "plain aggregates": PLAIN_AGGREGATES,
    "eager": EAGER,
    "rows of joins": ROWS_OF_JOINS,
    "whole queries": WHOLE_QUERIES,
    "nested": NESTED,
    "overflows": OVERFLOWS,
}
QUERIES = [text for texts in GROUPS.values() for text in texts]
