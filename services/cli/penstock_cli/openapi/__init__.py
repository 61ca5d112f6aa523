"""The HTTP API as an OpenAPI 3.1 document, made from the services' own models (`make contract`)."""

from penstock_cli.openapi.document import document

__all__ = ["document"]
