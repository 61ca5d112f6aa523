"""The process of this service."""

from penstock.service import main
from penstock_approvals.service import ApprovalsService

if __name__ == "__main__":
    main(ApprovalsService)
