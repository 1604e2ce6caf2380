"""The files behind a job's tables: which they are, and which columns they have. No Spark needed."""
