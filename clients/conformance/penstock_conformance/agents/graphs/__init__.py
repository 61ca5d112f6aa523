"""The folder for `langgraph dev` and `aegra serve`."""
