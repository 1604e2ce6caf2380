"""Results of jobs: their directories and files, pages and downloads, and their removal. Nothing runs in Spark here;
workers write the files. Start with `files.py` for batch jobs and `stream_result.py` for streaming jobs.
"""
