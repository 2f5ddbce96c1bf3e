"""The files of the page. They hold nothing but the program, so whoever may call Spillway gets them."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope
from typing_extensions import override

from proxy.api.dependencies import AlreadySent, On, authorized, public

FOLDER = Path(__file__).parents[1] / "page" / "static"
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
    """Static files with the headers that guard a page."""

    @override
    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


files = PageFiles(directory=FOLDER)
router = APIRouter(include_in_schema=False, routes=[Mount("/ui", GZipMiddleware(files))])


@router.api_route("/", methods=["GET", "HEAD"])
async def root(on: On, request: Request) -> Response:
    """Show the page to browsers; to programs the root of a backend stays what it is."""
    if "text/html" in request.headers.get("accept", "").lower():
        await public(request, on)
        return await files.get_response("index.html", request.scope)
    await on.relay.passthrough(await authorized(request, on))
    return AlreadySent()
