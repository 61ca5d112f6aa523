"""Run the approvals service as a process."""

from penstock.service import main
from penstock_approvals.service import ApprovalsService

if __name__ == "__main__":
    main(ApprovalsService)
