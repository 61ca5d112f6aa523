"""OpenAI's dialects for clients: Responses and Chat Completions."""

from penstock.dialects.openai.chat import DONE, ChatEncoder, failure
from penstock.dialects.openai.items import Asked
from penstock.dialects.openai.responses import ObjectEncoder, ResponsesEncoder

__all__ = ["DONE", "Asked", "ChatEncoder", "ObjectEncoder", "ResponsesEncoder", "failure"]
