"""The dashboard's static files, and the module that reads them once at start.
The dashboard uses the public API alone; its routes are in `service.api.dashboard`.
Start with `static/index.html` for the page and `bundle.py` for how it is served.
"""
