"""Access control: by key, or without keys by the requested host, the calling web page and the path.

With keys, only the key counts: browsers never add one by themselves, so no session can be stolen. Without keys, everybody who reaches
the port may ask models, but no foreign web page in somebody's browser may, and nobody may change what a backend serves.

If a web page has its own domain point at this machine (DNS rebinding), the browser takes both for the same origin. But the page
cannot choose the Host header, which is its own domain. So only addresses are accepted, and names that nobody else can register.

Paths are normalized as the most lenient server would read them. Routes get the request and services as FastAPI's dependencies.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import partial
from hashlib import blake2b
from secrets import token_hex
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Request, Response
from fastapi.security import HTTPBearer
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from proxy.addons.compact_now import CompactNow
from proxy.addons.conversation_summary import ConversationSummaries
from proxy.addons.history import RequestHistory
from proxy.addons.history_view import Viewer
from proxy.addons.metrics import Metrics
from proxy.addons.pins import Pins
from proxy.addons.user_memory import UserMemory
from proxy.backends import BACKENDS
from proxy.core.errors import BadRequest, Forbidden, LoopDetected, MethodRefused, Unauthorized, WebSocketRefused
from proxy.core.jsontext import dumps
from proxy.core.settings import LOOPBACK, Settings
from proxy.dialects import DIALECTS
from proxy.exchange import Exchange
from proxy.net.headers import VISITED, Headers, credential, is_credential, key_bytes, visited
from proxy.net.tasks import PAYER, Payer
from proxy.net.upstream import ReadinessProbe
from proxy.relay import Relay

_KEY_HEADERS = (b"authorization", b"x-api-key")
_DIRECT = re.compile(
    rb"(?:accept|access-control|content|if|sec|x-spillway|x-stainless)(?:-[a-z0-9-]+)?|authorization|cache-control|connection|cookie|"
    rb"dnt|expect|host|keep-alive|last-event-id|origin|pragma|priority|range|referer|save-data|te|transfer-encoding|"
    rb"upgrade-insecure-requests|user-agent|x-api-key|x-requested-with"
)
"""Headers sent by browsers and HTTP libraries themselves. Any other may come from a proxy or tunnel, which use hundreds of names."""
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+?)\.?(?::\d{0,5})?")
"""Host (RFC 3986, section 3.2.2, without percent-encoding) and port."""
_LOCAL_NAMES = ("localhost", "*.localhost", "host.docker.internal", "host.containers.internal")
"""Names of this machine, on itself and in its Docker and Podman containers."""
_LOOPBACK_NAMES = (*LOOPBACK, "[::1]")
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}\Z|\[.*\]\Z"
MODELS = "/v1/models"
PREFIXES = ("/v1", "/api/v1", "")
"""Ends of base URLs: OpenAI's, that of OpenRouter and LM Studio, and none."""
COUNTING = {dialect.count_path: dialect for dialect in DIALECTS.values() if dialect.count_path}
"""Paths that count the tokens of a request, by dialect."""
_MANAGED = {"POST": frozenset({*DIALECTS, *COUNTING}), "GET": frozenset({MODELS})}
_SLASHES = re.compile("//+")
_PREFIX = re.compile("(?:/api)?/v1(?=/)")
_PLAIN = re.compile(rb"(?:/(?!\.)[A-Za-z0-9_.~:@-]+)+")
"""Paths that every server reads the same way."""
_DECODED = 4
"""Most times that a path is decoded: each server in a chain may decode it once."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
ADMIN = re.compile("|".join(translate(glob) for backend in BACKENDS for glob in backend.admin))
"""Method and normalized path of requests that change or delete what a backend serves."""


class AccessControl:
    """Decides which requests are served, and to whom."""

    def __init__(self, settings: Settings, page_token: str = "") -> None:
        """Use the settings' keys; `page_token` opens the page to remote viewers if there are no keys; empty: nothing does."""
        self._keys, self._admin_keys = _tenants(settings.api_keys), _tenants(settings.admin_keys)
        self._allow, self._id = settings.allow, token_hex(8).encode()
        hosts = globs_pattern((*_LOCAL_NAMES, *settings.allowed_hosts, settings.host.lower()))
        self.known_hosts = re.compile(f"{hosts}|{_ADDRESS}")
        """Matches names of this machine, names allowed by the settings, and addresses, which DNS cannot point elsewhere."""
        self._origins = re.compile(globs_pattern(settings.cors))
        self._page_tokens = _tenants((page_token,) if page_token else ())
        self._open_to_viewers = not self._keys and not self._admin_keys

    def check(self, exchange: Exchange) -> None:
        """Check host, path and calling page, and note the visit in what is sent for the request; every request has to pass.

        Raises:
            LoopDetected: a request that was sent from here came back.
            BadRequest: there is not exactly one host, or the path is unsafe.
            WebSocketRefused: the request asks for a WebSocket.
            MethodRefused: the method is TRACE.
            Forbidden: without keys, the host or the calling page is not allowed, or the request would change a backend.
        """
        hosts = exchange.values(b"host")
        # RFC 9112, section 3.2: more than one Host must be refused. Two programs might each believe a different one.
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None and (hosts or exchange.version != "1.0"):  # old health probes send no host, browsers always do
            raise BadRequest("The request must have one Host header, with one name or address in it.")
        path = normalized(exchange.target)
        if (exchange.header(b"upgrade") or "").lower() == "websocket":
            raise WebSocketRefused(
                'Spillway does not speak WebSocket: use HTTP, streamed or not. In openai-agents, `set_default_openai_responses_transport("http")`.'
            )
        if (
            exchange.method == "TRACE"
        ):  # a backend would echo the headers, with the credentials in them (RFC 9110, 9.3.8)
            raise MethodRefused("Spillway neither serves TRACE nor passes it on: use another method.")
        passed = b",".join([*exchange.values(VISITED), self._id])
        if passed.count(self._id) > 1:
            raise LoopDetected(
                "This request has been here before: a backend leads back to this Spillway. SPILLWAY_BACKENDS must name the server of the models."
            )
        # Only its own id counts, so several Spillways may follow one another.
        visited.set(passed)
        if self._keys:
            return
        if name is not None and self.known_hosts.match(name) is None:
            raise Forbidden(
                f"The host name {name!r} is not one that Spillway accepts without keys: set "
                f"SPILLWAY_ALLOWED_HOSTS={name}, or use localhost or an IP address.",
                code="host_not_allowed",
            )
        origin = exchange.header(b"origin")
        if origin is None or self._origins.match(origin.lower()) is None:
            check_page(exchange)
        if "admin" not in self._allow and ADMIN.match(f"{exchange.method} {path}"):
            raise Forbidden(
                f"{exchange.method} {path} changes what a backend serves, which needs a key: set "
                "SPILLWAY_API_KEYS and send one, or SPILLWAY_ALLOW=admin to allow it without.",
                code="path_not_allowed",
            )

    def authorize(self, exchange: Exchange, *, optional: bool = False, viewers: bool = False) -> None:
        """Check the key and set the request's tenant: a digest of the key, or without keys of the credentials for backends.

        Args:
            exchange: the request.
            optional: whether the request is also served without a key.
            viewers: whether the request is also served with an admin key.

        Raises:
            Unauthorized: the request needs a key and has none.
        """
        tenant = _holder(self._keys, exchange.headers)
        exchange.trusted = not self._keys or tenant is not None
        exchange.tenant = tenant or credentials_tenant(exchange.headers)
        if not exchange.trusted and viewers and (viewer := self.find_viewer(exchange)) is not None:
            exchange.trusted, exchange.tenant = True, viewer.tenant
        if not exchange.trusted and not optional:
            raise Unauthorized(
                "This key is not one of Spillway's own: send one of SPILLWAY_API_KEYS."
                if any(map(exchange.header, _KEY_HEADERS))
                else "Spillway needs a key: send `Authorization: Bearer KEY` with one of SPILLWAY_API_KEYS."
            )
        exchange.authorized, exchange.page = True, partial(self._page, exchange)
        PAYER.set(Payer(exchange.tenant))

    def _page(self, exchange: Exchange) -> str:
        """Return the URL of the page if whoever sent this request can open it without a key; empty otherwise."""
        return f"http://{exchange.header(b'host')}/" if self._open_to_viewers and _is_local(exchange) else ""

    def find_viewer(self, exchange: Exchange) -> Viewer | None:
        """Return the viewer who sent a request, or None if a key is needed.

        Raises:
            Forbidden: no key is needed, but a foreign web page sent the request.
        """
        # By header, never by cookie: a cookie would be sent with other pages' requests too, and had to be kept from
        # backends.
        tenant = _holder(self._keys, exchange.headers)
        if _holder(self._admin_keys, exchange.headers) is not None:
            return Viewer("admin", tenant or "", content="content" in self._allow)
        if tenant is not None:
            return Viewer("key", tenant, content=True)
        if self._open_to_viewers and (_is_local(exchange) or _holder(self._page_tokens, exchange.headers) is not None):
            check_page(exchange, looks=True)  # pages that may ask models (SPILLWAY_CORS) may not read what others asked
            return Viewer("open", content=True)
        return None

    def viewer(self, exchange: Exchange) -> Viewer:
        """Return the viewer who sent a request.

        Raises:
            Unauthorized: a key is needed.
            Forbidden: see `find_viewer`.
        """
        viewer = self.find_viewer(exchange)
        if viewer is None:
            raise Unauthorized(
                "This needs a key, as `Authorization: Bearer KEY`: one of SPILLWAY_API_KEYS shows its own conversations, "
                "one of SPILLWAY_ADMIN_KEYS all. If none is set, open the link that Spillway printed at its start."
            )
        return viewer


def _is_local(exchange: Exchange) -> bool:
    """Return whether a request was made on this machine, to this machine, and not through a proxy.

    Any header that a proxy may have added counts as a proxy, whatever its value. nginx adds none, but speaks HTTP/1.0.
    """
    return (
        exchange.peer in LOOPBACK
        and exchange.version != "1.0"
        and host_name((exchange.header(b"host") or "").encode()) in _LOOPBACK_NAMES
        and all(_DIRECT.fullmatch(name) for name, _ in exchange.headers)
    )


def check_page(exchange: Exchange, *, looks: bool = False) -> None:
    """Refuse a request from a foreign web page, which browsers reveal by `Origin` or `Sec-Fetch-Site`.

    `looks`: the request is to read conversations, which the error then says.

    Raises:
        Forbidden: a page other than Spillway's own sent the request.
    """
    if (origins := exchange.values(b"origin")) != []:
        page = origins[0].decode("latin-1")
        # Compared without the scheme, because a proxy may have removed TLS.
        foreign = len(origins) > 1 or page.rpartition("://")[2].lower() != (exchange.header(b"host") or "").lower()
    else:
        # Images and scripts send no origin, but the other header. A person who follows a link (`navigate`) does no harm.
        page = "its origin"
        site, mode = exchange.header(b"sec-fetch-site"), exchange.header(b"sec-fetch-mode")
        foreign = site in ("cross-site", "same-site") and mode != "navigate"
    if foreign:
        what, cure = "use Spillway", f"add {page[:200]} to SPILLWAY_CORS, or give clients keys (SPILLWAY_API_KEYS)"
        if looks:
            what, cure = "look at conversations", "that takes a key (SPILLWAY_API_KEYS)"
        raise Forbidden(f"This web page may not {what}: {cure}.", code="origin_not_allowed")


def globs_pattern(globs: Sequence[str]) -> str:
    """Return a regular expression for text in lower case that matches one of these globs; without globs, nothing matches."""
    return "|".join(map(translate, globs)) or r"(?!)"


def host_name(host: bytes) -> str | None:
    """Return the name or address in a Host header, in lower case, without port and last dot; None if it is malformed."""
    found = _HOST.fullmatch(host.strip(b" \t"))
    return None if found is None else found[1].decode().lower()


def credentials_tenant(headers: Headers) -> str:
    """Return the tenant of a request that needs no key, from its credentials for backends."""
    return _tenant(b"\n".join(sorted(value for name, value in headers if is_credential(name))))


def _tenants(keys: Sequence[str]) -> dict[bytes, str]:
    """Return the tenants of Spillway's own keys, by digests of the encodings in which a key may arrive."""
    return {_digest(form): _tenant(key.encode()) for key in keys for form in key_bytes(key)}


def _holder(tenants: dict[bytes, str], headers: Headers) -> str | None:
    """Find the tenant whose key the request presents. Digests are compared, so the timing reveals nothing about a key."""
    if tenants:
        for name, value in headers:
            if name in _KEY_HEADERS and (tenant := tenants.get(_digest(credential(value)))) is not None:
                return tenant
    return None


def _tenant(credentials: bytes) -> str:
    """Return the tenant of credentials: a digest, which keeps histories of different credentials apart."""
    return blake2b(credentials, digest_size=12, person=b"spillway-tenant").hexdigest()


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=32).digest()


# -- paths


def canonical(method: str, path: str) -> str:
    """Return the managed path meant by one with another prefix or extra slashes; any other path is returned unchanged."""
    managed = _MANAGED.get(method, frozenset())
    if path not in managed:
        endpoint = _SLASHES.sub("/", path).removesuffix("/")
        for candidate in (endpoint, "/v1" + _PREFIX.sub("", endpoint, 1), _PREFIX.sub("", endpoint, 1)):
            if candidate in managed:
                return candidate
    return path


def normalized(target: bytes) -> str:
    """Return the path of a target as the most lenient server would read it: decoded, in lower case, without empty segments.

    Raises:
        BadRequest: the target is not a path, contains `..`, is not UTF-8 text, or is encoded too many times.
    """
    path = target.partition(b"?")[0]
    if _PLAIN.fullmatch(path):
        return path.decode().lower()
    for _ in range(_DECODED):
        encoded, path = path, unquote_to_bytes(path)
        if path == encoded:
            break
    else:
        raise BadRequest("The request's path is percent-encoded too many times.")
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise BadRequest("The request's path is not UTF-8 text; a name in it must be encoded as such.") from None
    if not target.startswith(b"/") or _CONTROL.search(text):
        raise BadRequest("The request's target must be a path that begins with a slash, without control characters.")
    # Some servers remove a segment's parameters (`;…`), and some read backslashes as slashes.
    segments = [segment.partition(";")[0].strip() for segment in text.replace("\\", "/").split("/")]
    if ".." in segments:
        raise BadRequest("The request's path must not contain `..`, in whatever way it is written.")
    return "/" + "/".join(segment for segment in segments if segment not in ("", ".")).lower()


# -- dependencies of routes

EXCHANGE = "spillway.exchange"
"""Key of the exchange in the scope of a request."""

bearer = HTTPBearer(
    auto_error=False, description="A key of SPILLWAY_API_KEYS or SPILLWAY_ADMIN_KEYS, where there are any."
)
"""Describes the keys at /openapi.json; `AccessControl` reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services that routes use; stored as `services` in the application's state."""

    relay: Relay
    settings: Settings
    metrics: Metrics
    access: AccessControl
    readiness: ReadinessProbe
    history: RequestHistory
    summaries: ConversationSummaries
    compact_now: CompactNow
    pins: Pins
    memory: UserMemory
    check_store: Callable[[], Awaitable[str]]
    shares_store: bool
    """Whether other instances use the same store."""


class AlreadySent(Response):
    """Response of routes that have already written their answer to the exchange."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


def as_json(value: Any) -> Response:
    """Build a JSON response that no cache stores."""
    return Response(dumps(value), media_type="application/json", headers={"cache-control": "no-store"})


async def services_of(request: Request) -> Services:
    """Return the services of the application that serves a request."""
    services: Services = request.app.state.services
    return services


On = Annotated[Services, Depends(services_of)]


def _exchange(**demand: bool) -> Callable[[Request, Services], Awaitable[Exchange]]:
    """Make a dependency that returns the exchange of a request authorized with these arguments of `AccessControl.authorize`."""

    async def exchange_of(request: Request, on: On) -> Exchange:
        exchange: Exchange = request.scope[EXCHANGE]
        on.access.authorize(exchange, **demand)
        return exchange

    return exchange_of


authorized = _exchange()
"""Exchange of a request that needs a key, if there are keys."""
public = _exchange(optional=True)
"""Exchange of a request that needs no key; the route may show more with one."""
viewing = _exchange(viewers=True)
"""Exchange of a request that needs a key, which may be an admin's."""

Authorized = Annotated[Exchange, Depends(authorized)]
Public = Annotated[Exchange, Depends(public)]
Viewing = Annotated[Exchange, Depends(viewing)]
