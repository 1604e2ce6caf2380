"""Opens what was found, and nothing that has been put in its place.

What is found of a table are paths without links. Whoever may write below a root can swap a part of one for a link
afterwards, so none is followed here: what is read is what was found, or nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for somebody who writes into a pipe.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_without_links(path: Path) -> BinaryIO:
    """The regular file at an absolute `path` that has no links; the caller closes it.

    Raises OSError as opening does, also where any part of the path has become a link, or the file something else.
    """
    with ExitStack() as opened:
        place: int | None = None
        for name in (path.anchor, *path.parts[1:-1]):
            place = os.open(name, _ON_THE_WAY, dir_fd=place)
            opened.callback(os.close, place)
        file = os.open(path.name, _TO_READ, dir_fd=place)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.fdopen(file, "rb")
