"""The dashboard: a page that knows of the service what its public API tells, and nothing else."""
