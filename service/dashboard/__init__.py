"""The dashboard's static files. The dashboard uses the public API alone.
Start with `static/index.html`; `service.api.dashboard` reads the files once and serves them.
"""
