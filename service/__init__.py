"""The REST service: accepts, validates, stores and reports jobs. It never imports pyspark or `workers`."""

from importlib.metadata import version

__version__ = version("evenkeel")
