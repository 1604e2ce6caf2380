"""Structured logs, log events and declared Prometheus metrics; next to them alert rules and a Grafana dashboard.
Metrics are measured where the work is done: `service.api.metrics` and the metrics module of the workers.
Start with `metrics.py`.
"""
