"""Plans and runs jobs: Celery, Spark, and the skew-aware engine."""
