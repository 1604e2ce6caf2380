"""Checks of the source that need no test run: imports, layout, wording, contracts of rules, generated documents.

`python -m tests.lint` runs all of them. A check is a function that takes the repository's directory and yields a
sentence for each violation. Checks that run the product belong in the tests instead.
"""
