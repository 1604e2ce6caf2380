SELECT o.o_orderpriority, COUNT(*) AS order_count
FROM orders o
SEMI JOIN lineitem l ON l.l_orderkey = o.o_orderkey AND l.l_commitdate < l.l_receiptdate
WHERE o.o_orderdate >= DATE '1993-07-01' AND o.o_orderdate < DATE '1993-10-01'
GROUP BY o.o_orderpriority
ORDER BY o.o_orderpriority
