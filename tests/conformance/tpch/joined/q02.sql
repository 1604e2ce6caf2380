WITH european AS (
  SELECT ps.ps_partkey, ps.ps_supplycost, s.s_acctbal, s.s_name, s.s_address, s.s_phone, s.s_comment, n.n_name
  FROM partsupp ps
  JOIN supplier s ON s.s_suppkey = ps.ps_suppkey
  JOIN nation n ON n.n_nationkey = s.s_nationkey
  JOIN region r ON r.r_regionkey = n.n_regionkey
  WHERE r.r_name = 'EUROPE'),
cheapest AS (SELECT ps_partkey, MIN(ps_supplycost) AS cost FROM european GROUP BY ps_partkey)
SELECT e.s_acctbal, e.s_name, e.n_name, p.p_partkey, p.p_mfgr, e.s_address, e.s_phone, e.s_comment
FROM part p
JOIN european e ON e.ps_partkey = p.p_partkey
JOIN cheapest c ON c.ps_partkey = p.p_partkey AND c.cost = e.ps_supplycost
WHERE p.p_size = 15 AND p.p_type LIKE '%BRASS'
ORDER BY e.s_acctbal DESC, e.n_name, e.s_name, p.p_partkey
LIMIT 100
