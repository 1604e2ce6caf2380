"""Verifies API keys, with a cache in each process.

A key is `ek_ID_SECRET`: the prefix lets scanners of leaked secrets find it, the id identifies its row, and the secret
has 256 random bits. That many cannot be guessed at any speed, so one round of SHA-256 is enough, where a password would
need a slow hash.

A cached key is valid for a few seconds, so a revoked key works that much longer in each process. Unknown keys are
cached separately, so that a caller who tries many keys does not evict valid ones.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from base64 import b32encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from service.contract.enums import ALL_SCOPES, DEFAULT_TENANT, KeyScope
from service.store import accounts
from service.store.session import Database

PRINCIPAL = "principal"
"""The key in a request's state that holds its caller."""
_PREFIX = "ek"
_ID_BYTES = 10
_SECRET_BYTES = 32
_KEY = re.compile(rf"{_PREFIX}_([a-z2-7]{{16}})_([A-Za-z0-9_-]{{43}})")
CACHE_SECONDS = 5.0
"""How long a cache entry is valid."""
_MAX_CACHED = 10_000
_USED_AT_RESOLUTION_MS = 60_000


@dataclass(frozen=True)
class Principal:
    """An authenticated caller: its tenant and scopes. `key_id` is empty if the service authenticates no callers."""

    tenant: str
    scopes: frozenset[KeyScope]
    key_id: str = ""


ANYBODY = Principal(DEFAULT_TENANT, ALL_SCOPES)
"""Every caller of a service that does not authenticate callers."""


@dataclass(frozen=True)
class Secret:
    """A key in two parts. `repr` shows the id only."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Secret(id={self.id!r})"

    @property
    def text(self) -> str:
        """The full key, as the client sends it."""
        return f"{_PREFIX}_{self.id}_{self.secret}"

    @property
    def sha256(self) -> str:
        """The hash that is stored."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def is_of(self, sha256: str) -> bool:
        """Whether the stored hash is that of this key. Compares in constant time."""
        return hmac.compare_digest(self.sha256, sha256)


def make_secret() -> Secret:
    """Creates a new key."""
    return Secret(b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower(), secrets.token_urlsafe(_SECRET_BYTES))


def read_secret(text: str) -> Secret | None:
    """Parses a key; returns None if the text does not have the form of a key."""
    found = _KEY.fullmatch(text)
    return Secret(found[1], found[2]) if found else None


@dataclass(frozen=True)
class _CachedKey:
    """What the database contained. `sha256` is empty for a key that does not exist or is no longer valid."""

    principal: Principal | None
    sha256: str
    looked_up: float


class KeyRing:
    """A cache of recently used keys. Safe to share between threads."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: OrderedDict[str, _CachedKey] = OrderedDict()
        self._refused: OrderedDict[str, _CachedKey] = OrderedDict()
        self._lock = threading.Lock()

    def find_cached(self, shown: Secret) -> tuple[bool, Principal | None]:
        """Returns whether the key is in the cache, and if so, its caller. Never blocks."""
        known = self._recent(shown.id)
        return (False, None) if known is None else (True, _principal(known, shown))

    def was_valid(self, shown: Secret) -> bool:
        """Whether the key was valid when it was last read, however long ago."""
        with self._lock:
            known = self._known.get(shown.id)
        return known is not None and _principal(known, shown) is not None

    def look_up(self, shown: Secret) -> Principal | None:
        """Returns the key's caller from the database; None for an invalid key. Raises database errors."""
        return _principal(self._read(shown.id, shown), shown)

    def holds(self, principal: Principal) -> bool:
        """Whether an earlier caller's key is still valid for the same tenant and scopes. May query the database."""
        if not principal.key_id:
            return True
        known = self._recent(principal.key_id) or self._read(principal.key_id)
        return known.principal == principal

    def _recent(self, key_id: str) -> _CachedKey | None:
        with self._lock:
            known = self._known.get(key_id) or self._refused.get(key_id)
        return None if known is None or self._clock() - known.looked_up > CACHE_SECONDS else known

    def _read(self, key_id: str, shown: Secret | None = None) -> _CachedKey:
        known = self._as_stored(key_id, shown, self._clock())
        kept, others = (self._known, self._refused) if known.principal else (self._refused, self._known)
        with self._lock:
            others.pop(key_id, None)
            kept[key_id] = known
            kept.move_to_end(key_id)
            while len(kept) > _MAX_CACHED:
                kept.popitem(last=False)
        return known

    def _as_stored(self, key_id: str, shown: Secret | None, started: float) -> _CachedKey:
        with self._database.look() as session:
            row = accounts.find_key(session, key_id)
            now = self._database.now(session)
        if row is None or not accounts.is_valid(row, now):
            return _CachedKey(None, "", started)
        # Not for a wrong secret, and not on each use: `used_at` only serves to find unused keys.
        is_shown = shown is not None and shown.is_of(row.secret_sha256)
        if is_shown and (row.used_at is None or row.used_at <= now - _USED_AT_RESOLUTION_MS):
            with self._database.write() as session:
                accounts.record_use(session, row.id, now)
        return _CachedKey(Principal(row.tenant, accounts.scopes_of(row), row.id), row.secret_sha256, started)


def _principal(known: _CachedKey, shown: Secret) -> Principal | None:
    return known.principal if known.principal is not None and shown.is_of(known.sha256) else None
