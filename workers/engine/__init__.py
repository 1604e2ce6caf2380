"""The skew-aware engine. Everything outside `spark/` (and later `streaming/`) runs and is tested without Spark."""
