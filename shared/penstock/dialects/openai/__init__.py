"""OpenAI's dialects for clients: Responses and Chat Completions."""

from penstock.dialects.openai.chat import DONE, ChatEncoder, failure
from penstock.dialects.openai.items import CONFIRMATIONS, Asked
from penstock.dialects.openai.responses import ResponsesEncoder

__all__ = ["CONFIRMATIONS", "DONE", "Asked", "ChatEncoder", "ResponsesEncoder", "failure"]
