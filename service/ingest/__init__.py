"""Parses rows that clients post (CSV, NDJSON and Arrow streams) strictly into Arrow tables. Batches are accepted in
`service.streams` and stored as files in `service.data.posted_rows`. Start with `parsing.py`.
"""
