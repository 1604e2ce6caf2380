"""Published results, read from their Parquet files without Spark: pages of JSON, and downloads."""
