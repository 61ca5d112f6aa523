"""Run the command `penstock` as `python -m penstock_cli`."""

from penstock_cli.main import app

app(prog_name="penstock")
