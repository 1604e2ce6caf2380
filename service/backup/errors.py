"""Why a backup was not made or not restored."""

from __future__ import annotations


class BackupError(Exception):
    """Something needed is missing or in the way; the message says what, `advice` what to do. Nothing was changed."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class DamagedBackupError(BackupError):
    """The copy is not what was written when it was made, or was never finished."""
