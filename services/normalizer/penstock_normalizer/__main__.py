"""Runs the normalizer as a separate process (`python -m penstock_normalizer`)."""

from penstock.service import main
from penstock_normalizer.service import NormalizerService

if __name__ == "__main__":
    main(NormalizerService)
