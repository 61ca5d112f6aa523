"""Tell runs what has become of their approvals, and withdraw the approvals of ended runs."""
