"""The composition root: from settings to an application."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI

from proxy.addon import AddOn, AddOns
from proxy.addons.ahead import AheadCompactor
from proxy.addons.archive import Archivist
from proxy.addons.cache_gaps import CacheGaps
from proxy.addons.commands import Commands
from proxy.addons.compact_now import CompactNow
from proxy.addons.conversation_summary import ConversationSummaries
from proxy.addons.document import DocumentReader
from proxy.addons.dropped_fields import DroppedFields
from proxy.addons.history import RequestHistory
from proxy.addons.larger_window import LargerWindow
from proxy.addons.log import RequestLog
from proxy.addons.metrics import Metrics
from proxy.addons.pins import Pins
from proxy.addons.prompt_prefix import PromptPrefix
from proxy.addons.recall import Recaller
from proxy.addons.slots import SlotKeeper
from proxy.addons.thinking import ThinkingBudget
from proxy.addons.tools_on_demand import ToolsOnDemand
from proxy.addons.user_memory import UserMemory
from proxy.api.access import AccessControl, Services
from proxy.api.app import create_api
from proxy.attempts.attempt import Attempts
from proxy.attempts.replies import Replies
from proxy.backends.profile import documented, merge_profiles, profile_from_settings
from proxy.compactor import Compactor
from proxy.config import is_here, is_nearby, proxy_for, wants_traces
from proxy.conversation_state import ConversationState
from proxy.core.errors import SettingError
from proxy.core.settings import BackendSetting, Settings
from proxy.counting import Counting
from proxy.net.flows import PROBE_TIMEOUT, FlowRunner
from proxy.net.headers import Header, ProxyKeys
from proxy.net.loading import WindowRequest
from proxy.net.prober import Prober
from proxy.net.tasks import cancel_all
from proxy.net.transport import HttpTransport
from proxy.net.upstream import ReadinessProbe, Upstream
from proxy.outcome import Telemetry
from proxy.pipeline import Pipeline
from proxy.preparing import Preparer
from proxy.relay import Relay
from proxy.routing import Router
from proxy.store import Store, StoreLimits, open_store
from proxy.summariser import Summaries
from proxy.tokens.cache import CacheMemory
from proxy.tokens.meter import Meter

if TYPE_CHECKING:  # an extra
    from opentelemetry.sdk.trace import TracerProvider

_log = logging.getLogger("spillway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times in seconds that users need not set; tests set their own."""

    connect_timeout: float = 10.0
    """Longest wait for a connection to a backend."""
    # With 0.25 s, a good Redis on a busy host was taken for dead.
    store_timeout: float = 1.0
    """Longest delay of a request by an operation of a dead store; a good Redis on a busy host takes a quarter of that."""
    profile_ttl: float = 30.0
    """Age up to which a probed profile is trusted."""
    grace: float = 2.0
    """Silence after which the response to a waiting stream is begun."""
    heartbeat: float = 10.0
    """Interval of heartbeats on a silent stream; shorter than the timeouts of proxies in between."""


_TIMES = Times()


def create_app(
    settings: Settings,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    store: Store | None = None,
    spans: "TracerProvider | None" = None,
    clock: Callable[[], float] = time.time,  # noqa: TID251 - the composition root is where the clock comes from
    times: Times = _TIMES,
    page_token: str = "",
) -> FastAPI:
    """Build the application. Its lifespan owns what it opens here: transport, store, tasks.

    `settings` must name backends; `transport` and `store` are those that they name by default, and spans go where the
    environment says; `clock` gives seconds since the epoch; `page_token` opens the page where there are no keys, and goes to no backend.

    Raises:
        SettingError: the store cannot be opened.
    """
    access, store = AccessControl(settings, page_token), store or _open_store(settings, clock, times.store_timeout)
    settings = settings.model_copy(update={"admin_keys": (page_token,)}) if page_token else settings
    wire = transport or open_wire(settings.backends, times.connect_timeout, settings.read_timeout)
    build_upstreams = partial(upstreams, settings=settings, transport=wire, store=store, ttl=times.profile_ttl)
    router = Router(build_upstreams(settings.backends), default=settings.default_model)
    pipeline, telemetry = _pipeline(settings, router, store, clock, times), Telemetry(clock=time.monotonic)
    counting, metrics = pipeline.counting, Metrics(keyed=bool(settings.api_keys))
    history = RequestHistory(counting.meter.memory, clock, telemetry.clock, remembers=settings.cache_bytes > 0)
    _watch(metrics, store, history, counting.meter.memory)
    compact_now, summaries = CompactNow(telemetry, pipeline), ConversationSummaries(history, store, pipeline)
    pins, memory = Pins(store, counting.meter), UserMemory(counting, store, clock)
    addons = addons_of(pipeline, telemetry, history, metrics, (pins, compact_now, summaries), memory, store)
    if (spans := spans or _spans()) is not None:
        addons = (*addons, _tracing(spans, router))
    telemetry.observers = pipeline.addons.all = addons
    services = Services(
        relay=Relay(pipeline=pipeline, router=router, telemetry=telemetry, manages_all=_manages_all(settings)),
        settings=settings,
        metrics=metrics,
        access=access,
        readiness=ReadinessProbe(router.upstreams),
        history=history,
        summaries=summaries,
        compact_now=compact_now,
        pins=pins,
        memory=memory,
        check_store=store.check,
        shares_store=store.shared,
    )
    app = create_api(services, partial(_lifespan, wire, store, counting, addons, spans))
    app.state.add_found = partial(_add_found, router, build_upstreams)
    return app


def _add_found(
    router: Router, made: Callable[..., Sequence[Upstream]], found: Sequence[BackendSetting]
) -> Sequence[Upstream]:
    """Serve the backends found that are not served yet, and return them."""
    urls, names = ({getattr(each, name) for each in router.upstreams} for name in ("url", "key"))
    new = [each for each in found if each.url not in urls]
    new = [BackendSetting(url=each.url, kind=each.kind) if each.name in names else each for each in new]
    added = made(new, beside=names)
    for upstream in added:
        router.add(upstream)
    return added


def _manages_all(settings: Settings) -> bool:
    """Return whether no backend and no model is left to itself."""
    backends, models = settings.backends, settings.models.values()
    observed = "observe" in (settings.strategy, *(each.strategy for each in models))
    return not observed and False not in (*(each.managed for each in backends), *(each.managed for each in models))


def _open_store(settings: Settings, clock: Callable[[], float], timeout: float) -> Store:
    limits = StoreLimits(clock=clock, ttl=settings.store_ttl, max_bytes=settings.store_bytes, timeout=timeout)
    return open_store(settings.store, limits)


@asynccontextmanager
async def _lifespan(
    wire: httpx.AsyncBaseTransport,
    store: Store,
    counting: Counting,
    addons: Sequence[AddOn],
    spans: "TracerProvider | None",
    _: FastAPI,
) -> AsyncIterator[None]:
    """At the end, cancel running tasks, save learned weights, and close everything."""
    try:
        yield
    finally:
        for addon in addons:
            addon.close()
        await cancel_all()
        await counting.save()
        await store.close()
        await wire.aclose()
        if spans is not None:  # sends what is still waiting, within a time limit of its own
            await asyncio.to_thread(spans.shutdown)


def _watch(metrics: Metrics, store: Store, history: RequestHistory, memory: CacheMemory) -> None:
    """Register metrics that do not come from outcomes."""
    metrics.watch("store_healthy", "Whether the store worked when it was last tried.", lambda: store.healthy)
    metrics.watch("live_bytes", "Bytes that the bodies of recent requests take.", lambda: history.bodies.size)
    metrics.watch("cache_bytes", "Bytes that all caches take, these bodies among them.", lambda: memory.size)
    metrics.watch("live_viewers", "Viewers of the live feed.", history.viewers.total)


def addons_of(
    pipeline: Pipeline,
    telemetry: Telemetry,
    history: RequestHistory,
    metrics: Metrics,
    commanded: Sequence[AddOn],
    memory: UserMemory,
    store: Store,
) -> tuple[AddOn, ...]:
    """List the add-ons, in the order in which they are called."""
    counting, compactor, preparer = pipeline.counting, pipeline.compactor, pipeline.preparer
    meter, settings = counting.meter, pipeline.settings
    may_move = any(each.overflow is not None for each in (settings, *settings.models.values()))
    addons: tuple[AddOn, ...] = (
        *commanded,
        PromptPrefix(meter),
        *([LargerWindow(pipeline, store)] if may_move else []),
        Archivist(store),
        Recaller(counting, pipeline.router),
        *([memory] if settings.remembers else []),
        DroppedFields(store, meter.memory),
        ToolsOnDemand(store),
        ThinkingBudget(),
        DocumentReader(counting, compactor, preparer),
        AheadCompactor(telemetry, preparer, compactor, counting),
        SlotKeeper(store),
        CacheGaps(meter.memory),
        history,
        RequestLog(),
        metrics,
    )
    return Commands(addons), *addons


def open_wire(
    backends: Sequence[BackendSetting], connect_timeout: float, read_timeout: float
) -> httpx.AsyncBaseTransport:
    """Open the transport towards these backends, through the HTTP proxies that the environment names for them.

    Raises:
        SettingError: a proxy that can't be used.
    """
    proxies = dict[str, str]()
    for backend in backends:
        if (proxy := proxy_for(backend.url)) is not None:
            proxies[backend.url] = proxy
            place = urlsplit(proxy).netloc.rpartition("@")[2]
            _log.info("backend %s is reached through the proxy at %s", backend.name, place)
    try:
        return HttpTransport(connect_timeout=connect_timeout, read_timeout=read_timeout, proxies=proxies)
    except ValueError as error:
        raise SettingError(f"HTTP_PROXY, HTTPS_PROXY or ALL_PROXY can't be used: {error}") from None


def _pipeline(settings: Settings, router: Router, store: Store, clock: Callable[[], float], times: Times) -> Pipeline:
    """Assemble the stages, still without add-ons."""
    addons, counting = AddOns(), Counting(meter=Meter(settings.cache_bytes), store=store)
    state = ConversationState(store=store, counting=counting, max_body=settings.max_body)
    summaries = Summaries(router, addons)
    compactor = Compactor(counting=counting, store=store, summaries=summaries, addons=addons, clock=clock)
    preparer = Preparer(counting=counting, store=store, state=state, addons=addons)
    attempts = Attempts(preparer=preparer, compactor=compactor, counting=counting, addons=addons)
    return Pipeline(
        settings=settings,
        state=state,
        router=router,
        preparer=preparer,
        counting=counting,
        compactor=compactor,
        attempts=attempts,
        replies=Replies(attempts=attempts, state=state, clock=clock, grace=times.grace, heartbeat=times.heartbeat),
        addons=addons,
    )


def _tracing(spans: "TracerProvider", router: Router) -> AddOn:
    from proxy.addons.tracing import Tracing  # noqa: PLC0415 - an extra, loaded only where it is used

    return Tracing(spans, router.upstreams)


def _spans() -> "TracerProvider | None":
    """Build the exporter of traces that the environment asks for, or return None if it asks for none."""
    if not wants_traces():
        return None
    try:
        from proxy.addons.tracing import Exporting  # noqa: PLC0415 - as above
    except ImportError as missing:
        _log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but there is no %s: no traces (pip install 'spillway-proxy[otel]')",
            missing.name,
        )
        return None
    return Exporting()


def upstreams(
    backends: Sequence[BackendSetting],
    settings: Settings,
    transport: httpx.AsyncBaseTransport,
    store: Store | None = None,
    ttl: float = _TIMES.profile_ttl,
    beside: Collection[str] = (),
) -> list[Upstream]:
    """Build the upstreams of these backends, each with its prober; `store` remembers windows that models were loaded with.

    People are shown the kind and port of one that the user did not name, unless another's name has this port, `beside` them too.
    """
    names = [*beside, *(backend.name for backend in backends)]

    def upstream(backend: BackendSetting) -> Upstream:
        host, port = urlsplit(backend.url).hostname or "", f"-{urlsplit(backend.url).port}"
        here = is_here(host)

        def request_window(model: str) -> WindowRequest:
            return WindowRequest(settings.window_of(model), model, backend=new_upstream.name, here=here)

        def prober(headers: Sequence[Header]) -> Prober:
            timeout, load_timeout = min(PROBE_TIMEOUT, settings.read_timeout), settings.read_timeout
            new_prober = Prober(
                FlowRunner(transport, backend.url, headers=headers, timeout=timeout, load_timeout=load_timeout),
                kind=backend.kind,
                ttl=ttl,
                overrides=lambda model: merge_profiles(documented(host, model), profile_from_settings(settings, model)),
                store=store,
                name=backend.name,
            )
            new_prober.request_window = request_window
            return new_prober

        new_upstream = Upstream(
            name=backend.name,
            url=backend.url,
            authorization=None if backend.authorization is None else backend.authorization.encode(),
            proxy_keys=ProxyKeys((*settings.api_keys, *settings.admin_keys)),
            transport=transport,
            prober=prober,
            managed=backend.managed,
        )
        is_only = sum(name.endswith(port) for name in names) == 1
        new_upstream.by_kind = is_only and "name" not in backend.model_fields_set
        new_upstream.near = is_nearby(host)
        return new_upstream

    return list(map(upstream, backends))
