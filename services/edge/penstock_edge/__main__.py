"""`python -m penstock_edge`: the edge as a process of its own."""

from penstock.service import main
from penstock_edge.service import EdgeService
from penstock_edge.stream.collector import Collector

Collector().install()
main(EdgeService)
