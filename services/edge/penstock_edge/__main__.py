"""`python -m penstock_edge`: the edge as a process of its own."""

from penstock.service import main
from penstock_edge.collector import Collector
from penstock_edge.service import EdgeService

Collector().install()
main(EdgeService)
