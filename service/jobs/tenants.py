"""The tenant of callers that the service does not authenticate, and of API keys that are made without naming one."""

from __future__ import annotations

DEFAULT_TENANT = "default"
