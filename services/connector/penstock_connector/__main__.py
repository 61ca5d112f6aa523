"""The process of this service."""

from penstock.service import main
from penstock_connector.service import ConnectorService

if __name__ == "__main__":
    main(ConnectorService)
