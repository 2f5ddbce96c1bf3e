"""Ollama's requests for vectors, for backends that know OpenAI's only.

Fields: Ollama's API reference (docs/api.md, 0.14); OpenAI API reference, "Create embeddings" (2026).
"""

from __future__ import annotations

from typing import Any

from proxy.dialects.bodies import given, named_model_in, object_in
from proxy.errors import BadRequest, UpstreamInvalid
from proxy.wire.jsontext import dumps, loads

PATH, OLD_PATH = "/api/embed", "/api/embeddings"
UPSTREAM_PATH = b"/v1/embeddings"
_DURATIONS = dict.fromkeys(("total_duration", "load_duration"), 0)


def asked_of_backend(raw: bytes, path: str, model: str) -> bytes:
    """The body of the same request to a backend that knows the model by this id.

    Raises:
        BadRequest: it is malformed.
    """
    body = object_in(raw)
    named_model_in(body)
    name = "prompt" if path == OLD_PATH else "input"
    texts = body.get(name)
    listed = [texts] if isinstance(texts, str) else texts
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise BadRequest(f"`{name}` must be a text or a list of texts.", param=name)
    return dumps(
        {"model": model, "input": listed, "encoding_format": "float", **given(body, ("dimensions",))}
    )


def answered(raw: bytes, path: str, model: str) -> bytes:
    """The backend's answer as Ollama gives it.

    Raises:
        UpstreamInvalid: it is none.
    """
    try:
        parsed = loads(raw)
        data = sorted(parsed["data"], key=lambda each: each["index"])
        vectors: list[Any] = [each["embedding"] for each in data]
    except (ValueError, KeyError, TypeError):
        raise UpstreamInvalid("The backend answered with something that holds no vectors.") from None
    if path == OLD_PATH:
        return dumps({"embedding": vectors[0] if vectors else []})
    usage = parsed.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return dumps({"model": model, "embeddings": vectors, **_DURATIONS, "prompt_eval_count": count or 0})
