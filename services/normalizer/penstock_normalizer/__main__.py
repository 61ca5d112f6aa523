"""Run the normalizer as a process."""

from penstock.service import main
from penstock_normalizer.service import NormalizerService

if __name__ == "__main__":
    main(NormalizerService)
