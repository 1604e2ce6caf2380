WITH german AS (
  SELECT ps.ps_partkey, ps.ps_supplycost * ps.ps_availqty AS cost
  FROM partsupp ps
  JOIN supplier s ON s.s_suppkey = ps.ps_suppkey
  JOIN nation n ON n.n_nationkey = s.s_nationkey
  WHERE n.n_name = 'GERMANY'),
parts AS (SELECT ps_partkey, SUM(cost) AS value FROM german GROUP BY ps_partkey),
total AS (SELECT SUM(cost) * 0.001 AS least FROM german)
SELECT p.ps_partkey, p.value
FROM parts p
CROSS JOIN total t
WHERE p.value > t.least
ORDER BY p.value DESC
