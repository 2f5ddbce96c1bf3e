"""The models in the form in which a client asks for them: OpenAI's list, Anthropic's, or Codex's catalog."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from starlette.responses import Response

from proxy.api.models import model_list, offered, one_model, with_native
from proxy.dialects.messages.models import model, page_of_models
from proxy.dialects.responses.catalog import VERSION, catalog
from proxy.errors import ModelNotFound
from proxy.options import Options
from proxy.stages.routing import Router
from proxy.wire.jsontext import dumps

ANTHROPIC = b"anthropic-version"
"""The header that all who speak to Anthropic's API send, and nobody else."""


async def all_models(
    router: Router, options: Options, path: str, asked: Mapping[str, str], *, anthropic: bool
) -> dict[str, Any] | Response:
    """The list that is `asked` for at a path.

    Raises:
        BadRequest: Anthropic's list has no such page.
    """
    listed = await model_list(router, options)
    if anthropic:
        return _json(page_of_models([offered(each) for each in listed["data"]], asked))
    if VERSION in asked:
        body = _json({**listed, **catalog([offered(each) for each in listed["data"]])})
        # Codex keeps its catalog until this changes.
        body.headers["etag"] = f'"{blake2b(body.body, digest_size=12).hexdigest()}"'
        return body
    return await with_native(router, path, listed)


async def one(router: Router, options: Options, name: str, *, anthropic: bool) -> dict[str, Any] | Response:
    """One model.

    Raises:
        ModelNotFound: no backend lists it.
    """
    found = await one_model(router, options, name)
    if found is None:
        raise ModelNotFound(f"No backend lists the model {name!r}; GET /v1/models shows what there is.")
    return _json(model(offered(found))) if anthropic else found


def _json(body: Any) -> Response:
    return Response(dumps(body), media_type="application/json")
