"""Routes for health, readiness, metrics, and the files of the page, which are public since they hold no data."""

import os
from pathlib import Path

from fastapi import APIRouter, Depends, Request, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope
from typing_extensions import override

from proxy.api.access import EXCHANGE, AlreadySent, On, Public, as_json, authorized, bearer, public
from proxy.api.schemas import answers

_FOLDER = Path(__file__).parents[1] / "page" / "static"
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    "vary": "accept",
}


class PageFiles(StaticFiles):
    """Serves static files with the headers that protect a page."""

    @override
    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


_files = PageFiles(directory=_FOLDER)
router = APIRouter(routes=[Mount("/ui", GZipMiddleware(_files))])


@router.get("/healthz", tags=["health"], responses=answers("Health"))
@router.head("/healthz", include_in_schema=False)
async def healthz(_: Public) -> Response:
    """Answer while the process runs."""
    return as_json({"status": "ok"})


@router.get(
    "/readyz",
    tags=["health"],
    responses=answers("Readiness")
    | {503: {"description": "No backend lists a model, or this instance's store fails."}},
)
@router.head("/readyz", include_in_schema=False)
async def readyz(on: On, exchange: Public) -> Response:
    """Ask the backends whether one lists a model, and try the store, whose failure counts unless other instances share it."""
    # A shared store fails for all instances at once. If all left, nobody would answer, though chats go on without it. So it is not
    # even waited for where it is not shown: an orchestrator gives up after a second.
    backends = await on.readiness.kinds()
    store = await on.check_store() if exchange.trusted or not on.shares_store else "ok"
    fails = "" if store == "ok" or on.shares_store else "the store fails"
    status = (fails or "ready") if any(backends.values()) else "no backend lists a model"
    response = as_json({"status": status, **({"backends": backends, "store": store} if exchange.trusted else {})})
    response.status_code = 200 if status == "ready" else 503
    return response


@router.get("/metrics", tags=["health"], response_class=Response, dependencies=[Depends(bearer)])
async def metrics(on: On, request: Request) -> Response:
    """Counters in Prometheus' text format."""
    on.access.authorize(request.scope[EXCHANGE], optional="metrics" in on.settings.allow)
    return Response(on.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def root(on: On, request: Request) -> Response:
    """Show the page to browsers; requests of programs are passed to a backend."""
    if "text/html" in request.headers.get("accept", "").lower():
        await public(request, on)
        return await _files.get_response("index.html", request.scope)
    await on.relay.passthrough(await authorized(request, on))
    return AlreadySent()
