"""`python -m service.cli`: the command without its script, for child processes."""

from service.cli.main import app

app(prog_name="evenkeel")
