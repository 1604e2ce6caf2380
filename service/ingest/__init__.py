"""Rows that clients post: read strictly, and kept as Parquet files that appear whole."""
