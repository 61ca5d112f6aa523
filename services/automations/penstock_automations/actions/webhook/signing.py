"""Signs the bytes of a webhook as Standard Webhooks describes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook


def signed(secrets: Sequence[str], webhook_id: str, unix_s: float, body: bytes) -> dict[str, str]:
    """Return the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.

    `webhook-signature` has a signature for each secret; without a secret, this header is missing.

    Each attempt gets a new timestamp and signature, because receivers refuse a timestamp that is
    five minutes old.
    """
    at = datetime.fromtimestamp(int(unix_s), UTC)
    text = body.decode()
    headers = {"webhook-id": webhook_id, "webhook-timestamp": str(int(unix_s))}
    if secrets:
        signatures = [Webhook(each).sign(webhook_id, at, text) for each in secrets]
        headers["webhook-signature"] = " ".join(signatures)
    return headers
