"""Health, readiness and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from proxy.api.dependencies import EXCHANGE, On, Public, bearer

router = APIRouter(tags=["health"])


@router.get("/healthz")
@router.head("/healthz", include_in_schema=False)
async def healthz(_: Public) -> dict[str, str]:
    """Answer while the process runs."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "No backend answers, or the server is being stopped."}})
@router.head("/readyz", include_in_schema=False)
async def readyz(on: On, exchange: Public, response: Response) -> dict[str, Any]:
    """Ask the backends whether one answers. A store that fails is reported to those with a key, but does not count."""
    backends = await on.readiness.kinds()
    status = "draining" if exchange.draining else "ready" if any(backends.values()) else "no backend answers"
    response.status_code = 200 if status == "ready" else 503
    details = {"backends": backends, "store": await on.check_store()} if exchange.trusted else {}
    return {"status": status, **details}


@router.get("/metrics", response_class=Response, dependencies=[Depends(bearer)])
async def metrics(on: On, request: Request) -> Response:
    """Counters in Prometheus' text format."""
    on.access.authorize(request.scope[EXCHANGE], optional="metrics" in on.settings.allow)
    return Response(on.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
