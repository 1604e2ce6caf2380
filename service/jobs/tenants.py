"""Whose jobs they are. Callers are not told apart yet: every row belongs to the one tenant named here."""

from __future__ import annotations

DEFAULT_TENANT = "default"
