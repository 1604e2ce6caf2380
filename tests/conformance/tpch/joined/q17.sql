SELECT SUM(l.l_extendedprice) / 7.0 AS avg_yearly
FROM lineitem l
JOIN part p ON p.p_partkey = l.l_partkey
JOIN (SELECT l_partkey, 0.2 * AVG(l_quantity) AS least FROM lineitem GROUP BY l_partkey) AS a
  ON a.l_partkey = l.l_partkey
WHERE p.p_brand = 'Brand#23' AND p.p_container = 'MED BOX' AND l.l_quantity < a.least
