"""The automations service matches events with rules, and carries out the rules' actions."""
