"""`python -P -m workers --pool threads …`: starts a worker, with the options of `celery worker`.

Celery's own command puts the current directory first on the path, so it could import another package named `workers`.
"""

from __future__ import annotations

import sys

from workers.celery_app import app

if __name__ == "__main__":
    app.worker_main(["worker", *sys.argv[1:]])
