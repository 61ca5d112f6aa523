"""Runs the connector as a separate process (`python -m penstock_connector`)."""

from penstock.service import main
from penstock_connector.service import ConnectorService

if __name__ == "__main__":
    main(ConnectorService)
