"""The process of this service."""

from penstock.service import main
from penstock_normalizer.service import NormalizerService

if __name__ == "__main__":
    main(NormalizerService)
