WITH revenue AS (
  SELECT l_suppkey AS supplier_no, SUM(l_extendedprice * (1 - l_discount)) AS total_revenue
  FROM lineitem
  WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01'
  GROUP BY l_suppkey),
best AS (SELECT MAX(total_revenue) AS most FROM revenue)
SELECT s.s_suppkey, s.s_name, s.s_address, s.s_phone, r.total_revenue
FROM supplier s
JOIN revenue r ON r.supplier_no = s.s_suppkey
JOIN best b ON b.most = r.total_revenue
ORDER BY s.s_suppkey
