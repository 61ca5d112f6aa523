"""The kinds of pauses that real agent servers ask for, and each way in which a pause can end."""
