"""Results of jobs: their directories and files, pages and downloads, and their removal.
Nothing is computed with Spark here; workers write the files.
Start with `files.py` for batch jobs and `stream_result.py` for streaming jobs.
"""
