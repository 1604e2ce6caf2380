"""Checks of the source that need no test run: imports, layout, wording, contracts of rules, generated documents.

`python -m tests.lint` runs all of them. A check is a function from the repository's directory to sentences, one for
each violation. What runs the product belongs in the tests instead.
"""
