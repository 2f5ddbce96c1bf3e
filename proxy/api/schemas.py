"""Responses of Spillway's own endpoints. Fields that are not named here pass unchanged."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Health(_Open):
    """The process answers."""

    status: Literal["ok"]


class Readiness(_Open):
    """Readiness to serve requests."""

    status: Literal["ready", "no backend answers", "draining"]
    backends: dict[str, str | None] | None = Field(
        default=None, description="Name to kind; null: it does not answer. Only told to those who have a key."
    )
    store: str | None = Field(
        default=None, description="`ok`, or what is wrong; it does not count for readiness. Only told as `backends` is."
    )


class ModelNote(_Open):
    """Additions of Spillway's to a model's object."""

    backend: str
    window: int | None = Field(description="Effective context window in tokens; null: not known.")
    virtual_window: int | None = Field(description="Tokens of the window that Codex and Claude Code get.")
    window_origin: str | None
    trigger: float = Field(description="Fill at which a request is compacted before it is sent.")
    pause: float = Field(description="Fill at which a running answer is paused and compacted.")
    managed: bool
    tools: str = Field(description="How a request's tools reach the model.")
    vision: bool | None = Field(description="Whether it takes pictures; null: not known.")


class ModelObject(_Open):
    """A model as its backend lists it, and what Spillway knows."""

    id: str
    context_length: int | None = Field(description="Effective context window in tokens; null: not known.")
    supports_tools: bool | None
    spillway: ModelNote


class ModelList(_Open):
    """OpenAI's list object, over all backends."""

    object: Literal["list"]
    data: list[ModelObject]


class OllamaVersion(_Open):
    """Version of Ollama's API that is emulated."""

    version: str


class OllamaModels(_Open):
    """Models in Ollama's form."""

    models: list[dict[str, Any]]


class OllamaModel(_Open):
    """One model in Ollama's form."""

    capabilities: list[str]
    model_info: dict[str, Any]
    details: dict[str, Any]


class KnownBackend(_Open):
    """Known facts about one backend."""

    name: str
    url: str
    kind: str | None = Field(description="null: it has not answered yet.")
    models: dict[str, dict[str, Any]] = Field(description="Each field with value, origin and trust.")


class KnownBackends(_Open):
    """Known facts about every backend and model."""

    backends: list[KnownBackend]


class Explanation(_Open):
    """Plan for a chat request, without sending it."""

    model: str
    backend: str
    window: int | None
    prompt_tokens: int
    fill: float | None
    action: str = Field(
        description="`forwarded`; `due`: it would be shortened first; `passed`: it is not managed. A `note` says why."
    )
    messages: list[dict[str, Any]] = Field(description="As they would be sent.")
