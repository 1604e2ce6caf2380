"""The dashboard's static files and the module that reads them.

The dashboard uses only the public API. Its routes are in `service.api.operations`. Start with `static/index.html` for
the page and `bundle.py` for how it is served.
"""
