"""Entries of settings that are tables: a backend, and what is said of models; and the kinds of value that settings share."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from proxy.environment import host_glob, listed, origin_glob
from proxy.shortening.policy import Limit, Policy
from proxy.shortening.strategies import STRATEGIES

BackendKind = Literal["auto", "lmstudio", "ollama", "openrouter", "llamacpp", "llamaswap", "vllm", "generic"]
StatusForm = Literal["auto", "event", "reasoning", "content", "comment", "off"]
Recall = Literal["auto", "tool", "off"]
AheadMode = Literal["auto", "on", "off"]
NonBlank = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]

SingleLimits = dict[Limit, Annotated[int, Field(ge=0)]]
Tokens = Annotated[int, Field(ge=256)]


def _known(strategy: str) -> str:
    if strategy not in STRATEGIES:
        raise ValueError(f"must be one of {', '.join(STRATEGIES)}")
    return strategy


StrategyName = Annotated[str, AfterValidator(_known)]

WordList = Annotated[tuple[NonBlank, ...], NoDecode, BeforeValidator(listed)]
HostGlobs = Annotated[
    tuple[Annotated[NonBlank, AfterValidator(host_glob)], ...], NoDecode, BeforeValidator(listed)
]
OriginGlobs = Annotated[
    tuple[Annotated[NonBlank, AfterValidator(origin_glob)], ...], NoDecode, BeforeValidator(listed)
]

STATUS_FORMS: tuple[str, ...] = get_args(StatusForm)


class BackendSetting(BaseModel):
    """One backend. `url` is its root, with or without `/v1`; `name` defaults to its host and port.

    What is not `managed` passes through untouched.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    name: str = ""
    kind: BackendKind = "auto"
    api_key: NonBlank | None = Field(default=None, repr=False)
    managed: bool = True
    _basic: str | None = PrivateAttr(None)

    @field_validator("url")
    @classmethod
    def _root(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        parts = urlsplit(value)
        # A wrong port raises a ValueError of its own when it is asked for.
        if not parts.hostname or parts.port == 0 or re.search(r"[\s?#]", value):
            raise ValueError("must be a root such as http://127.0.0.1:1234, without query or spaces")
        return value.rstrip("/").removesuffix("/v1").rstrip("/")

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.@ -]*", value, re.ASCII):
            raise ValueError("must be made of letters, digits, spaces and . _ - @")
        return value

    @model_validator(mode="after")
    def _user_and_name(self) -> BackendSetting:
        """Take user and password out of the URL, which is shown in many places, and give it a name."""
        parts = urlsplit(self.url)
        before, at, place = parts.netloc.rpartition("@")
        if at:
            if self.api_key is not None:
                raise ValueError("has both an api_key and a user in its url; only one of them can be sent")
            user, _, password = before.partition(":")
            told = f"{unquote(user)}:{unquote(password)}".encode()
            self._basic = f"Basic {b64encode(told).decode()}"
            object.__setattr__(self, "url", parts._replace(netloc=place).geturl())
        if not self.name:
            place = f"{parts.hostname}-{parts.port}" if parts.port else f"{parts.hostname}"
            object.__setattr__(self, "name", re.sub(r"[^\w.@-]", "-", place, flags=re.ASCII))
        return self

    @property
    def authorization(self) -> str | None:
        """What the backend is told in `Authorization`: its key, or user and password; None: what the client tells."""
        return self._basic if self.api_key is None else f"Bearer {self.api_key}"


class ModelSetting(BaseModel):
    """What the user says of the models whose id matches a glob; an absent field leaves the probed value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    managed: bool | None = None
    window: int | None = Field(default=None, ge=256)
    tools: bool | None = None
    vision: bool | None = None
    tokenizer: str | None = None
    continuation: Literal["continue_final_message", "trailing_assistant", "user_turn"] | None = None
    trigger: Fraction | None = None
    target: Fraction | None = None
    pause: Fraction | None = None
    trigger_tokens: Tokens | None = None
    target_tokens: Tokens | None = None
    strategy: StrategyName | None = None
    policy: Policy | None = None
    limits: SingleLimits | None = None
    summary_model: str | None = None
    virtual_window: int | None = Field(default=None, ge=0)
    recall: Recall | None = None
    recall_share: Fraction | None = None
    recall_model: str | None = None
    ahead: AheadMode | None = None
    answer_cap: int | None = Field(default=None, ge=0)
    tools_allowed: tuple[str, ...] | None = None
    tools_first: tuple[str, ...] | None = None
    agent_prompt: bool | None = None
    system_prompt_file: Path | None = None
    guide_file: Path | None = None
