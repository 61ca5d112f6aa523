"""Runs the edge as a separate process (`python -m penstock_edge`)."""

from penstock.service import main
from penstock_edge.service import EdgeService
from penstock_edge.stream.collector import Collector

Collector().install()
main(EdgeService)
