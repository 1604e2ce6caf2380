"""Who asks.

What a key looks like, and what is stored of it.

`ek_ID_SECRET`: the prefix lets scanners of leaked secrets find it, the id finds its row, and the secret has 256 bits of
chance. So many cannot be guessed, whatever a guess costs: one round of SHA-256 is enough, where a password would need a
slow hash.

Checks keys as they are shown, hundreds of times a second, without asking the database each time.

What was looked up counts for a few seconds, so a revoked key opens doors that much longer, in each process. A key that
does not exist is remembered too, apart from those that do: whoever tries keys must not have others forgotten.
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


@dataclass(frozen=True)
class Principal:
    """A caller: whose jobs it sees, and what it may do. `key_id` is empty where callers are not authenticated."""

    tenant: str
    scopes: frozenset[KeyScope]
    key_id: str = ""


PRINCIPAL = "principal"
"""Where the state of a request has its caller."""

ANYBODY = Principal(DEFAULT_TENANT, ALL_SCOPES)
"""Every caller of a service that authenticates nobody."""


_PREFIX = "ek"
_ID_BYTES = 10
_SECRET_BYTES = 32
_KEY = re.compile(rf"{_PREFIX}_([a-z2-7]{{16}})_([A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True)
class Secret:
    """A key in two parts; neither is shown by `repr`."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Secret(id={self.id!r})"

    @property
    def text(self) -> str:
        """The key as its bearer shows it."""
        return f"{_PREFIX}_{self.id}_{self.secret}"

    @property
    def sha256(self) -> str:
        """What is stored."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def is_of(self, sha256: str) -> bool:
        """Whether this is the key of which that was stored; takes as long for a near miss as for any other."""
        return hmac.compare_digest(self.sha256, sha256)


def make_secret() -> Secret:
    """A new key."""
    return Secret(b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower(), secrets.token_urlsafe(_SECRET_BYTES))


def read_secret(text: str) -> Secret | None:
    """The key that a caller shows; None for what cannot be one."""
    found = _KEY.fullmatch(text)
    return Secret(found[1], found[2]) if found else None


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
            row = accounts.find_key(session, key_id)
            now = self._database.now(session)
        if row is None or not accounts.is_live(row, now):
            return _Known(None, "", started)
        # Not for a guess at its secret, and not each time: `used_at` is there to find keys that nobody needs.
        is_shown = shown is not None and shown.is_of(row.secret_sha256)
        if is_shown and (row.used_at is None or row.used_at <= now - _USE_NOTED_MS):
            with self._database.write() as session:
                accounts.note_use(session, row.id, now)
        return _Known(Principal(row.tenant, accounts.scopes_of(row), row.id), row.secret_sha256, started)


def _principal(known: _Known, shown: Secret) -> Principal | None:
    return known.principal if known.principal is not None and shown.is_of(known.sha256) else None
