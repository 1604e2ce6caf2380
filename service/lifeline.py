"""A child process that ends with its parent, however the parent ended: `kill -9` included.

The parent sets `EVENKEEL_PARENT_PID` to its own process id; the child calls `die_with_parent()` first thing. Without
the variable nothing happens: a worker or an API started by a service manager answers to that alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_PID = "EVENKEEL_PARENT_PID"
"""Environment variable with the process id to outlive by nothing."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_POLL_SECONDS = 0.5


def die_with_parent() -> None:
    """Has this process killed (SIGKILL) as soon as the process named by `EVENKEEL_PARENT_PID` is gone.

    To be called from the main thread of the child that was started by that very process. On Linux the kernel does it;
    note that it watches the *thread* that started the child, so that thread must live as long as the child is wanted.
    Elsewhere a thread looks twice a second. Calling it again does no harm.

    Raises RuntimeError outside the main thread, where the kernel would forget the request with the thread, and
    ValueError for a variable that is no process id.
    """
    text = os.environ.get(PARENT_PID)
    if not text:
        return
    if not text.isdigit():
        raise ValueError(f"{PARENT_PID} must be a process id, not {text!r}")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("die_with_parent() must be called from the main thread")
    parent = int(text)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()
    # The parent may have gone before the request was made.
    _die_if_orphaned(parent)


def _watch(parent: int) -> None:
    while True:
        _die_if_orphaned(parent)
        time.sleep(_POLL_SECONDS)


def _die_if_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
