"""The AsyncAPI 3 document: every subject with its message, headers and examples."""

from __future__ import annotations

from typing import Any

from penstock.bus import messages, streams, subjects
from penstock.contract import VERSION
from penstock.events import CATALOGUE, Event, EventType, subject_of
from penstock.events.examples import example
from penstock.events.note import RUN_ID

Json = dict[str, Any]

_DESCRIPTION = """\
Canonical events of AI-agent runs on NATS JetStream, on subjects `category.action.run_id`.

Readers must accept types and fields that they do not know: later versions add them.
`catalogue.md` says what each event means, `consuming.md` how to read events."""

# the descriptions of the NATS headers, by name
_HEADERS = {
    "ce-specversion": "CloudEvents version, `1.0` (NATS binding, binary mode).",
    "ce-id": "`<run_id>.<sequence>`. The same event always has the same id.",
    "ce-source": "`/penstock/<agent id>`.",
    "ce-type": "`category.action`.",
    "ce-time": "The event's `timestamp`.",
    "ce-datacontenttype": "`application/json`.",
    messages.SEQUENCE: "The event's `sequence` in its run.",
    messages.RAW_POSITION: "The sequence in the stream RAW of the event's source frame.",
    messages.RAW_FIRST: "The sequence in RAW of the run's first frame.",
    messages.FIRST: "The sequence in EVENTS of the run's first event; not on that event itself.",
    "traceparent": "The W3C Trace Context of the start, if it had one.",
}
_OPTIONAL = {messages.FIRST, "traceparent"}
_SCHEMAS = "./schemas"


def document() -> Json:
    return {
        "asyncapi": "3.0.0",
        "id": "urn:penstock",
        "info": {
            "title": "Penstock events",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "nats": {
                "host": "{host}",
                "protocol": "nats",
                "description": "NATS with JetStream.",
                "variables": {"host": {"default": "localhost:4222"}},
                "security": [{"$ref": "#/components/securitySchemes/user"}],
            }
        },
        "channels": {row.name: _channel(row) for row in CATALOGUE.values()},
        "operations": {row.name: _operation(row) for row in CATALOGUE.values()},
        "components": {
            "parameters": {
                "run_id": {
                    "description": "The run's id, a UUIDv7 (a UUIDv8 in further shards). "
                    "`*` subscribes to all runs.",
                    "examples": [RUN_ID],
                    "location": "$message.payload#/run_id",
                }
            },
            "messages": {
                **{row.name: _message(row) for row in CATALOGUE.values()},
                "reference": _REFERENCE,
            },
            "messageTraits": {"event": {"headers": _headers(), "contentType": "application/json"}},
            "securitySchemes": {
                "user": {"type": "userPassword", "description": "A NATS user, see consuming.md."}
            },
        },
        "x-jetstream": _jetstream(),
    }


_REFERENCE = {
    "name": "reference",
    "title": "Reference to a large event",
    "summary": "The message in place of an event over 512 KiB; the event is in the object store.",
    "traits": [{"$ref": "#/components/messageTraits/event"}],
    "payload": {"$ref": f"{_SCHEMAS}/reference.json"},
    "examples": [{"name": "large", "payload": {"penstock_object": f"{RUN_ID}.13"}}],
}


def _channel(row: EventType) -> Json:
    return {
        "address": f"{row.name}.{{run_id}}",
        "title": row.title,
        "description": f"{row.description} {row.note.when}",
        "parameters": {"run_id": {"$ref": "#/components/parameters/run_id"}},
        "messages": {
            "event": {"$ref": f"#/components/messages/{row.name}"},
            "reference": {"$ref": "#/components/messages/reference"},
        },
        "x-jetstream": {
            "stream": streams.EVENTS,
            "live": f"live.{row.name}.{{run_id}}",
            "times": row.note.times,
        },
    }


def _operation(row: EventType) -> Json:
    channel = f"#/channels/{row.name}"
    return {
        "action": "send",
        "summary": f"Penstock sends: {row.title}.",
        "channel": {"$ref": channel},
        "messages": [
            {"$ref": f"{channel}/messages/event"},
            {"$ref": f"{channel}/messages/reference"},
        ],
    }


def _message(row: EventType) -> Json:
    sample = example(row.name)
    return {
        "name": row.name,
        "title": row.title,
        "summary": row.description,
        "tags": [{"name": row.name.split(".")[0]}],
        "traits": [{"$ref": "#/components/messageTraits/event"}],
        "payload": {"$ref": f"{_SCHEMAS}/{row.name}.json"},
        "examples": [
            {
                "name": "example",
                "summary": f"On subject {subject_of(sample)}",
                "headers": headers(sample),
                "payload": sample.model_dump(mode="json", exclude_unset=True),
            }
        ],
    }


def headers(event: Event) -> dict[str, str]:
    """Return the headers of an example, as the normalizer writes them."""
    first = {} if event.sequence == 1 else {messages.FIRST: "40112"}
    return {
        "ce-specversion": "1.0",
        "ce-id": f"{event.run_id}.{event.sequence}",
        "ce-source": "/penstock/assistant",
        "ce-type": event.type,
        "ce-time": event.timestamp,
        "ce-datacontenttype": "application/json",
        messages.SEQUENCE: str(event.sequence),
        messages.RAW_POSITION: str(61200 + event.sequence),
        messages.RAW_FIRST: "61201",
        **first,
    }


def _headers() -> Json:
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in _HEADERS.items()
        },
        "required": [name for name in _HEADERS if name not in _OPTIONAL],
    }


def _jetstream() -> Json:
    """Describe the stream as it is made with default settings."""
    retention = streams.Retention()
    [stream] = [each for each in streams.streams(retention) if each.name == streams.EVENTS]
    assert stream.republish is not None, "the edge lives on it"
    return {
        "stream": stream.name,
        "subjects": stream.subjects,
        "retention": "limits",
        "max_age_s": int(retention.events_max_age_s),
        "allow_direct": stream.allow_direct,
        "allow_atomic": stream.allow_atomic,
        "republish": {"src": stream.republish.src, "dest": stream.republish.dest},
        "order": f"by run: `sequence` is 1, 2, 3 …; all of a run is `{subjects.events_of_run('*')}`"
        " with the run id as the last token",
        "duplicates": "none in the stream; a consumer may get a message again, with the same ce-id",
        "durable_name": "<team>-<service>-<purpose>",
    }
