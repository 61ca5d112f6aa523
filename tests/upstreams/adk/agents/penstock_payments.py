from google.adk.tools import ToolContext

sent: dict[str, str] = {}  # in production a table whose primary key is the key


def send_money(to: str, amount: int, tool_context: ToolContext) -> dict[str, str]:
    """Send money."""
    key = f"{tool_context.custom_metadata['idempotency_key']} {to} {amount}"
    if key not in sent:
        sent[key] = f"payment {len(sent) + 1} to {to}"  # the effect
    return {"sent": sent[key]}
