"""Documents of the operator, such as the policy of approvals and the budgets.

A document is strict YAML or JSON with a version. It is stored over HTTP, and in force without a
restart.
"""
