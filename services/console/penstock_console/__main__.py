"""Run the console as a process."""

from penstock.service import main
from penstock_console.service import ConsoleService

if __name__ == "__main__":
    main(ConsoleService)
