"""What a key looks like, and what is stored of it.

`ek_ID_SECRET`: the prefix lets scanners of leaked secrets find it, the id finds its row, and the secret has 256 bits of
chance. So many cannot be guessed, whatever a guess costs: one round of SHA-256 is enough, where a password would need a
slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b32encode
from dataclasses import dataclass

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
