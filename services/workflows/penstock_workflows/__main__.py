"""Run the workflows service as a process."""

from penstock.service import main
from penstock_workflows.service import WorkflowsService

if __name__ == "__main__":
    main(WorkflowsService)
