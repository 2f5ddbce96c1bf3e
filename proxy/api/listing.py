"""The models in the form in which a client asks for them: OpenAI's list, Anthropic's, or Codex's catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from starlette.responses import Response

from proxy.api.models import model_list, offered, one_model, with_native
from proxy.core.errors import ModelNotFound
from proxy.core.jsontext import dumps
from proxy.core.settings import Settings
from proxy.dialects.listing import CODEX_QUERY, anthropic_model, anthropic_page, codex_catalog
from proxy.routing import Router

ANTHROPIC = "anthropic-version"
"""The header that all who speak to Anthropic's API send, and nobody else."""
_CLAUDE_CODE = re.compile("claude-(cli|code)/")
"""How the user agent of Claude Code (2.1) begins: `cli` where it sends messages, `code` where it lists models."""


async def all_models(
    router: Router, settings: Settings, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> dict[str, Any] | Response:
    """The list that a client asks for at `path`, with the query parameters `query`."""
    listed = await model_list(router, settings)
    models = [offered(each) for each in listed["data"]]
    if ANTHROPIC in headers:
        return _json(anthropic_page(models, virtual=_is_claude_code(headers)))
    if CODEX_QUERY in query:
        body = _json({**listed, **codex_catalog(models)})
        # Codex keeps its catalog until this changes.
        body.headers["etag"] = f'"{blake2b(body.body, digest_size=12).hexdigest()}"'
        return body
    return await with_native(router, path, listed)


async def one(router: Router, settings: Settings, name: str, headers: Mapping[str, str]) -> dict[str, Any] | Response:
    """One model.

    Raises:
        ModelNotFound: no backend lists it.
    """
    found = await one_model(router, settings, name)
    if found is None:
        raise ModelNotFound(f"No backend lists the model {name!r}; GET /v1/models shows what there is.")
    if ANTHROPIC in headers:
        return _json(anthropic_model(offered(found), virtual=_is_claude_code(headers)))
    return found


def _is_claude_code(headers: Mapping[str, str]) -> bool:
    return _CLAUDE_CODE.match(headers.get("user-agent", "")) is not None


def _json(body: Any) -> Response:
    return Response(dumps(body), media_type="application/json")
