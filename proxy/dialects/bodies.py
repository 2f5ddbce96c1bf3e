"""What the dialects share when they read bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from proxy.errors import BadRequest
from proxy.wire.jsontext import loads_text


def object_in(raw: bytes) -> dict[str, Any]:
    """The JSON object that a request's body is.

    Raises:
        BadRequest: not JSON, or not an object.
    """
    try:
        body = loads_text(raw)
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}. Send a JSON object.") from None
    if not isinstance(body, dict):
        raise BadRequest("The request body must be a JSON object.")
    return body


def model_in(body: Mapping[str, Any]) -> str:
    """The id of the model that is asked for.

    Raises:
        BadRequest: none is.
    """
    model = body.get("model")
    if not isinstance(model, str):
        raise BadRequest(
            "`model` must be the id of a model; GET /v1/models shows what there is.", param="model"
        )
    return model


def given(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of these fields that are there."""
    return {name: body[name] for name in names if body.get(name) is not None}


def is_count(value: Any) -> bool:
    """Whether it is a number of tokens that bounds anything."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def text(value: Mapping[str, Any], name: str) -> str:
    """A field that is text; empty if it is none."""
    said = value.get(name)
    return said if isinstance(said, str) else ""
