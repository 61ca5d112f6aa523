"""OpenAI's dialects for clients: Responses and Chat Completions."""

from penstock.dialects.openai.chat import DONE, ChatEncoder, failure
from penstock.dialects.openai.items import RequestId
from penstock.dialects.openai.responses import ObjectEncoder, ResponsesEncoder

__all__ = ["DONE", "ChatEncoder", "ObjectEncoder", "RequestId", "ResponsesEncoder", "failure"]
