from agno.run import RunContext

sent: dict[str, str] = {}  # in production a table whose primary key is the key


def send_money(run_context: RunContext, to: str, amount: int) -> str:
    """Send money."""
    key = f"{run_context.metadata['idempotency_key']} {to} {amount}"
    if key not in sent:
        sent[key] = f"payment {len(sent) + 1} to {to}"  # the effect
    return sent[key]
