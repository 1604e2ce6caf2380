"""Copies of everything that the service keeps, database and results, and the way back."""
