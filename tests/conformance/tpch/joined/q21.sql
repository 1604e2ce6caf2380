SELECT s.s_name, COUNT(*) AS numwait
FROM lineitem l1
JOIN supplier s ON s.s_suppkey = l1.l_suppkey
JOIN orders o ON o.o_orderkey = l1.l_orderkey
JOIN nation n ON n.n_nationkey = s.s_nationkey
SEMI JOIN lineitem l2 ON l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey
ANTI JOIN lineitem l3
  ON l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate
WHERE o.o_orderstatus = 'F' AND l1.l_receiptdate > l1.l_commitdate AND n.n_name = 'SAUDI ARABIA'
GROUP BY s.s_name
ORDER BY numwait DESC, s.s_name
LIMIT 100
