"""The automations service matches events with rules, and delivers each match once."""
