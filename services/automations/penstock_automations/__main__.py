"""Run the automations service as a process."""

from penstock.service import main
from penstock_automations.service import AutomationsService

if __name__ == "__main__":
    main(AutomationsService)
