"""Checks keys as they are shown, hundreds of times a second, without asking the database each time.

What was looked up counts for a few seconds, so a revoked key opens doors that much longer, in each process. A key that
does not exist is remembered too, apart from those that do: whoever tries keys must not have others forgotten.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from service.keys.principal import Principal
from service.keys.secrets import Secret
from service.store import api_keys
from service.store.session import Database

REMEMBERED_SECONDS = 5.0
"""How long a look-up counts."""

_MOST_REMEMBERED = 10_000
_USE_NOTED_MS = 60_000


@dataclass(frozen=True)
class _Known:
    """What the database had; `sha256` is empty for a key that is not there, or opens nothing any more."""

    principal: Principal | None
    sha256: str
    looked_up: float


class KeyRing:
    """The keys of late callers. Safe to share between threads."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._refused: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, shown: Secret) -> tuple[bool, Principal | None]:
        """Whether the key was looked up lately, and whose it is if so. Never waits."""
        known = self._recent(shown.id)
        return (False, None) if known is None else (True, _principal(known, shown))

    def has_held(self, shown: Secret) -> bool:
        """Whether the key with this secret opened something when it was last looked up, however long ago."""
        with self._lock:
            known = self._known.get(shown.id)
        return known is not None and _principal(known, shown) is not None

    def look_up(self, shown: Secret) -> Principal | None:
        """Whose key it is; None for one that opens nothing. Asks the database, and raises as that does."""
        return _principal(self._read(shown.id, shown), shown)

    def holds(self, principal: Principal) -> bool:
        """Whether a caller of some time ago would still be let in with the same key. May ask the database."""
        if not principal.key_id:
            return True
        known = self._recent(principal.key_id) or self._read(principal.key_id)
        return known.principal == principal

    def _recent(self, key_id: str) -> _Known | None:
        with self._lock:
            known = self._known.get(key_id) or self._refused.get(key_id)
        return None if known is None or self._clock() - known.looked_up > REMEMBERED_SECONDS else known

    def _read(self, key_id: str, shown: Secret | None = None) -> _Known:
        known = self._as_stored(key_id, shown, self._clock())
        kept, others = (self._known, self._refused) if known.principal else (self._refused, self._known)
        with self._lock:
            others.pop(key_id, None)
            kept[key_id] = known
            kept.move_to_end(key_id)
            while len(kept) > _MOST_REMEMBERED:
                kept.popitem(last=False)
        return known

    def _as_stored(self, key_id: str, shown: Secret | None, started: float) -> _Known:
        with self._database.look() as session:
            row = api_keys.find_key(session, key_id)
            now = self._database.now(session)
        if row is None or not api_keys.is_live(row, now):
            return _Known(None, "", started)
        # Not for a guess at its secret, and not each time: `used_at` is there to find keys that nobody needs.
        is_shown = shown is not None and shown.is_of(row.secret_sha256)
        if is_shown and (row.used_at is None or row.used_at <= now - _USE_NOTED_MS):
            with self._database.write() as session:
                api_keys.note_use(session, row.id, now)
        return _Known(Principal(row.tenant, api_keys.scopes_of(row), row.id), row.secret_sha256, started)


def _principal(known: _Known, shown: Secret) -> Principal | None:
    return known.principal if known.principal is not None and shown.is_of(known.sha256) else None
