"""`python -m penstock_cli` is `penstock`."""

from penstock_cli.main import app

app(prog_name="penstock")
