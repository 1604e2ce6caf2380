"""Structured logs, log events and declared Prometheus metrics; alert rules and a Grafana dashboard.
Metrics are measured where the work is done: in `service.api.operations` and `workers.metrics`.
Start with `metrics.py`.
"""
