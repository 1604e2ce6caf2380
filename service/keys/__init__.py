"""API keys: making, showing, checking and ending them."""
