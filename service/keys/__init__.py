"""API keys: issuing, listing, revoking, and verifying a key that a request carries.
HTTP headers are read in `service.api.authentication`; rows of keys are in `service.store.accounts`.
Start with `verification.py`.
"""
