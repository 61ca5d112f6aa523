"""Converts ADK's content parts and grounding into the shapes of Penstock's contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from penstock.dialects.adk.decode.frames import (
    Blob,
    CodeResult,
    Document,
    ExecutableCode,
    FileData,
    GroundingMetadata,
    GroundingSupport,
    Part,
    Segment,
)
from penstock.dialects.base import Json, JsonObject
from penstock.dialects.json import OBJECT, array, obj, objects, string

_TO_STANDARD_BASE64 = str.maketrans("-_", "+/")


def media(part: Part) -> JsonObject | None:
    """Return an entry of `llm.message_completed.parts`: `{type: data, media_type, data}` (standard
    base64), `{type: file, media_type, uri}`, `{type: code, language, code}`, `{type: code_result,
    outcome, output}`. Data and files also have `name` if the part has one. Return None for any
    other part."""
    for key, convert in _MEDIA.items():
        value = part.get(key)
        if isinstance(value, OBJECT):
            return convert(value)
    return None


def _data(blob: Blob) -> JsonObject:
    return _named(blob, type="data", media_type=blob.get("mimeType"), data=_base64(blob))


def _file(file: FileData) -> JsonObject:
    return _named(file, type="file", media_type=file.get("mimeType"), uri=file.get("fileUri"))


def _code(code: ExecutableCode) -> JsonObject:
    return {"type": "code", "language": code.get("language"), "code": code.get("code")}


def _code_result(result: CodeResult) -> JsonObject:
    return {
        "type": "code_result",
        "outcome": result.get("outcome"),
        "output": result.get("output"),
    }


_MediaKey = Literal["inlineData", "fileData", "executableCode", "codeExecutionResult"]
_MEDIA: Final[Mapping[_MediaKey, Callable[[Any], JsonObject]]] = {
    "inlineData": _data,
    "fileData": _file,
    "executableCode": _code,
    "codeExecutionResult": _code_result,
}
MEDIA_KEYS = frozenset(_MEDIA)


def _named(value: Blob | FileData, **fields: Json) -> JsonObject:
    name = string(value.get("displayName"))
    return fields | {"name": name} if name else fields


def _base64(blob: Blob) -> str:
    # ADK writes URL-safe base64, which `atob` in a browser refuses.
    data = (string(blob.get("data")) or "").translate(_TO_STANDARD_BASE64)
    return data + "=" * (-len(data) % 4)


def documents(grounding: GroundingMetadata) -> list[JsonObject]:
    """Return the shape of `retrieval.result`. `content` is the retrieved text, or else the answer's
    sentences that the document supports, or else its title. `score` is the highest confidence with
    which the document supports a sentence."""
    sentences, scores = _supports(grounding)
    return [
        _document(index, chunk, sentences.get(index, []), scores.get(index))
        for index, chunk in enumerate(objects(grounding.get("groundingChunks")))
    ]


def _supports(grounding: GroundingMetadata) -> tuple[dict[int, list[str]], dict[int, float]]:
    sentences: dict[int, list[str]] = {}
    scores: dict[int, float] = {}
    support: GroundingSupport
    for support in objects(grounding.get("groundingSupports")):
        segment: Segment = obj(support.get("segment"))
        sentence = string(segment.get("text"))
        confidence = array(support.get("confidenceScores"))
        for position, index in enumerate(array(support.get("groundingChunkIndices"))):
            if not isinstance(index, int):
                continue
            if sentence:
                sentences.setdefault(index, []).append(sentence)
            score = confidence[position] if position < len(confidence) else None
            if isinstance(score, int | float):
                scores[index] = max(scores.get(index, float(score)), float(score))
    return sentences, scores


def _document(
    index: int, chunk: JsonObject, sentences: list[str], score: float | None
) -> JsonObject:
    found: Document = next(
        (inner for inner in chunk.values() if isinstance(inner, OBJECT)), obj({})
    )
    title, url = string(found.get("title")), string(found.get("uri"))
    content = string(found.get("text")) or " ".join(sentences) or title or ""
    document: JsonObject = {
        "id": string(found.get("documentName")) or url or str(index),
        "content": content,
    }
    optional = {"score": score, "title": title, "url": url}
    return document | {name: value for name, value in optional.items() if value is not None}
