WITH phoned AS (
  SELECT c_custkey, SUBSTRING(c_phone, 1, 2) AS cntrycode, c_acctbal
  FROM customer
  WHERE SUBSTRING(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')),
average AS (SELECT AVG(c_acctbal) AS balance FROM phoned WHERE c_acctbal > 0.00)
SELECT p.cntrycode, COUNT(*) AS numcust, SUM(p.c_acctbal) AS totacctbal
FROM phoned p
CROSS JOIN average a
ANTI JOIN orders o ON o.o_custkey = p.c_custkey
WHERE p.c_acctbal > a.balance
GROUP BY p.cntrycode
ORDER BY p.cntrycode
