"""API keys: creating, listing, revoking, and verifying the key of a request. HTTP headers are read in
`service.api.authentication`; rows of keys are in `service.store.accounts`. Start with `verification.py`.
"""
