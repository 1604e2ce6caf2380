WITH shipped AS (
  SELECT l_partkey, l_suppkey, 0.5 * SUM(l_quantity) AS least
  FROM lineitem
  WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  GROUP BY l_partkey, l_suppkey),
excess AS (
  SELECT ps.ps_suppkey
  FROM partsupp ps
  SEMI JOIN part p ON p.p_partkey = ps.ps_partkey AND p.p_name LIKE 'forest%'
  JOIN shipped sh ON sh.l_partkey = ps.ps_partkey AND sh.l_suppkey = ps.ps_suppkey
  WHERE ps.ps_availqty > sh.least)
SELECT s.s_name, s.s_address
FROM supplier s
JOIN nation n ON n.n_nationkey = s.s_nationkey
SEMI JOIN excess e ON e.ps_suppkey = s.s_suppkey
WHERE n.n_name = 'CANADA'
ORDER BY s.s_name
