"""Check a deployment: `gather` collects facts, `checks` judges them, `report` shows the result."""
