"""Who may look and act: keys, other pages, other names."""

import gzip
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from proxy.api.live import MOST_VIEWERS
from tests.addons.watching import code, viewing
from tests.fakes import LlamaCppFake, scripted
from tests.proxying import Proxy, running_proxy
from tests.raw import connected

ANNE, BERT, BOSS = ({"authorization": f"Bearer {name}-key-12345"} for name in ("anne", "bert", "boss"))
SAID = {"messages": [{"role": "user", "content": "my secret is a pineapple"}]}
READS = (
    *("/spillway/conversations", "/spillway/outcomes", "/spillway/savings"),
    *("/spillway/live", "/spillway/requests/x", "/spillway/conversations/x"),
)


@pytest.fixture(scope="module")
def fake() -> Iterator[LlamaCppFake]:
    with LlamaCppFake(brain=scripted(["Sure."] * 500)) as fake:
        yield fake


@pytest.fixture(scope="module")
def guarded(fake: LlamaCppFake) -> Iterator[Proxy]:
    keys = {"api_keys": ("anne-key-12345", "bert-key-12345"), "admin_keys": ("boss-key-12345",)}
    with running_proxy(fake, **keys) as proxy:
        for who in (ANNE, BERT):
            assert proxy.chat(SAID, **who).status_code == 200
        yield proxy


def rows(proxy: Proxy, **headers: str) -> list[dict[str, Any]]:
    answer = proxy.client.get("/spillway/conversations", headers=headers)
    assert answer.status_code == 200
    told: list[dict[str, Any]] = answer.json()["conversations"]
    return told


@pytest.mark.parametrize("path", READS)
def test_nobody_looks_without_a_key_where_there_are_any(guarded: Proxy, path: str) -> None:
    assert code(guarded.client.get(path)) == (401, "invalid_api_key")
    assert code(guarded.client.get(path, headers={"x-api-key": "wrong"})) == (401, "invalid_api_key")


def test_a_key_sees_its_own_and_nothing_of_others(guarded: Proxy) -> None:
    (anne,), (bert,) = rows(guarded, **ANNE), rows(guarded, **BERT)
    assert anne["title"] == bert["title"] == "my secret is a pineapple"
    assert anne["id"] != bert["id"]
    for path in (
        f"/spillway/conversations/{anne['id']}",
        f"/spillway/requests/{anne['request']}",
        f"/spillway/live?conversation={anne['id']}",
    ):
        assert code(guarded.client.get(path, headers=BERT)) == (404, "not_found")
    mine = guarded.client.get("/spillway/outcomes", headers=BERT).json()["outcomes"]
    assert {each["conversation"] for each in mine} == {bert["id"]}
    assert guarded.client.get("/spillway/savings", headers=BERT).json()["requests"] == 1
    assert guarded.client.get(f"/spillway/outcomes?conversation={anne['id']}", headers=BERT).json()["outcomes"] == []
    with viewing(guarded, **BERT) as seen:
        snapshot = seen.until("snapshot")
        assert [row["id"] for row in snapshot["conversations"]] == [bert["id"]]
        guarded.chat(SAID, **ANNE)
        guarded.chat(SAID, **BERT)
        seen.until("conversation", lambda row: row["state"] == "idle" and row["turns"] > 1)
        seen.until("outcome")
        owners = {told["owner"] for name, told in seen.events if name in ("conversation", "outcome")}
        assert owners == {bert["owner"]}


def test_an_admin_sees_all_figures_and_what_was_said_only_if_it_may_be_shown(guarded: Proxy, fake: LlamaCppFake) -> None:
    told = rows(guarded, **BOSS)
    assert len({row["owner"] for row in told}) == 2
    assert {row["title"] for row in told} == {None}
    assert "pineapple" not in guarded.client.get(f"/spillway/conversations/{told[0]['id']}", headers=BOSS).text
    assert code(guarded.chat(SAID, **BOSS)) == (401, "invalid_api_key")  # it is for looking
    with running_proxy(fake, admin_keys=("boss-key-12345",), allow=("content",)) as shown:
        shown.chat(SAID)
        assert [row["title"] for row in rows(shown, **BOSS)] == ["my secret is a pineapple"]
        assert code(shown.client.get("/spillway/conversations")) == (401, "invalid_api_key")


def test_on_another_address_an_admin_looks_where_there_is_a_key(fake: LlamaCppFake) -> None:
    with running_proxy(fake, host="0.0.0.0", allow=("open",), admin_keys=("boss-key-12345",)) as proxy:
        assert proxy.chat(SAID).status_code == 200
        assert code(proxy.client.get("/spillway/conversations")) == (401, "invalid_api_key")
        assert len(rows(proxy, **BOSS)) == 1


def test_on_another_address_without_keys_the_token_of_the_log_opens_the_page(fake: LlamaCppFake) -> None:
    token = "of-the-log-12345"
    with running_proxy(fake, host="0.0.0.0", allow=("open",), page_token=token) as proxy:
        assert proxy.chat(SAID, authorization=f"Bearer {token}").status_code == 200
        assert fake.chats()[-1].header("authorization") is None
        elsewhere = {"host": "192.0.2.7:8484"}
        assert code(proxy.client.get("/spillway/conversations", headers=elsewhere)) == (401, "invalid_api_key")
        assert [row["title"] for row in rows(proxy, **elsewhere, authorization=f"Bearer {token}")] == [
            "my secret is a pineapple"
        ]
        assert len(rows(proxy)) == 1  # on this machine itself, as `spillway top` in the container


@pytest.mark.parametrize("host", ["spillway.example", "192.0.2.7", "host.docker.internal"])
def test_without_keys_only_this_machine_by_its_own_name_looks(fake: LlamaCppFake, host: str) -> None:
    with running_proxy(fake, allowed_hosts=("spillway.example",)) as proxy:
        assert rows(proxy, host="localhost:1") == []
        answer = proxy.client.get("/spillway/conversations", headers={"host": host})
        assert code(answer) == (401, "invalid_api_key")


FORWARDED = """via forwarded x-forwarded-for x-forwarded-host x-forwarded-proto x-forwarded-server x-real-ip x-client-ip client-ip
x-cluster-client-ip x-original-forwarded-for x-original-host x-original-url x-envoy-external-address x-request-start x-scheme
cf-connecting-ip cf-ray cf-visitor cdn-loop true-client-ip fastly-client-ip fly-client-ip x-azure-clientip x-appengine-user-ip
x-amzn-trace-id x-vercel-id x-arr-log-id x-proxyuser-ip x-tunnel-id tailscale-user-login ngrok-auth-user-email max-forwards
remote-addr proxy-connection x-b3-traceid"""


@pytest.mark.parametrize("value", ["203.0.113.7", ""])
def test_who_comes_through_a_proxy_or_tunnel_is_not_on_this_machine(fake: LlamaCppFake, value: str) -> None:
    with running_proxy(fake) as proxy, connected(proxy.url) as client:
        for name in FORWARDED.split():
            answer = proxy.client.get("/spillway/conversations", headers={name: value})
            assert code(answer) == (401, "invalid_api_key"), name
        browser = "accept-language sec-ch-ua sec-fetch-dest dnt referer cookie if-none-match upgrade-insecure-requests priority"
        assert rows(proxy, **dict.fromkeys(browser.split(), value)) == []
        client.send(b"GET /spillway/conversations HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n")  # as nginx sends it
        assert client.answer()[0].status == 401


def test_the_feeds_of_one_key_leave_those_of_others_alone(guarded: Proxy) -> None:
    with ExitStack() as feeds:
        for _ in range(MOST_VIEWERS):
            feeds.enter_context(viewing(guarded, **BERT))
        assert code(guarded.client.get("/spillway/live", headers=BERT)) == (503, "overloaded")
        for who in (ANNE, BOSS):
            feeds.enter_context(viewing(guarded, **who))


# Browsers


def test_a_page_is_told_who_looks_and_where_a_key_is_needed(guarded: Proxy) -> None:
    def session(**headers: str) -> dict[str, Any]:
        answer = guarded.client.get("/spillway/session", headers=headers)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        told: dict[str, Any] = {key: value for key, value in answer.json().items() if key != "version"}
        return told

    url = f"{guarded.url}/v1"
    for unknown in ({}, {"x-api-key": "wrong"}):
        assert session(**unknown) == {"role": None, "content": False, "memory": False, "base_url": url}
    assert session(**ANNE) == {"role": "key", "content": True, "memory": False, "base_url": url}
    assert session(**BOSS) == {"role": "admin", "content": False, "memory": False, "base_url": url}
    assert session(**{"x-forwarded-proto": "https"})["base_url"].startswith("https://")


def test_an_admin_reads_what_is_known_of_models(guarded: Proxy) -> None:
    assert guarded.client.get("/spillway/models", headers=BOSS).status_code == 200


def test_a_key_in_a_cookie_is_none(guarded: Proxy) -> None:
    """A browser sends cookies with requests of other pages, too."""
    for cookie in ("anne-key-12345", "key=anne-key-12345", "authorization=Bearer anne-key-12345"):
        answer = guarded.client.get("/spillway/conversations", headers={"cookie": cookie})
        assert code(answer) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "page",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_another_page_neither_looks_nor_acts_where_nothing_is_guarded(fake: LlamaCppFake, page: dict[str, str]) -> None:
    with running_proxy(fake) as proxy:
        for method, path in (
            ("GET", "/spillway/conversations"),
            ("POST", "/spillway/requests/x/stop"),
            ("DELETE", "/spillway/conversations/x/summary"),
        ):
            assert code(proxy.client.request(method, path, headers=page)) == (403, "origin_not_allowed")
            own = proxy.client.request(method, path, headers={"origin": proxy.url})
            assert own.status_code in (200, 404)


def test_pages_that_may_ask_models_may_not_look(fake: LlamaCppFake) -> None:
    with running_proxy(fake, cors=("*",)) as proxy:
        page = {"origin": "https://chat.example.com"}
        assert proxy.chat(SAID, **page).status_code == 200
        for path in READS:
            refused = proxy.client.get(path, headers=page)
            assert code(refused) == (403, "origin_not_allowed")
            assert "SPILLWAY_CORS" not in refused.text  # it stands there already


# The page's files


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_gets_the_page_and_a_program_what_the_backend_has_there(guarded: Proxy, fake: LlamaCppFake) -> None:
    shown = guarded.client.get("/", headers=BROWSER)
    assert (shown.status_code, shown.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert shown.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert (shown.headers["x-content-type-options"], shown.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert "<title>Spillway</title>" in shown.text
    assert guarded.client.head("/", headers=BROWSER).status_code == 200
    before = len(fake.requests)
    for accept in ("application/json", "*/*"):
        guarded.client.get("/", headers={**ANNE, "accept": accept})
    guarded.client.head("/", headers=ANNE)
    assert [each.path for each in fake.requests[before:]] == ["/"] * 3
    assert code(guarded.client.get("/")) == (401, "invalid_api_key")


def test_files_are_compressed_and_not_sent_twice(guarded: Proxy) -> None:
    with httpx.Client(base_url=guarded.url, trust_env=False) as browser:
        plain = browser.get("/ui/app.js", headers={"accept-encoding": "identity"})
        assert "javascript" in plain.headers["content-type"]
        with browser.stream("GET", "/ui/app.js", headers={"accept-encoding": "gzip"}) as zipped:
            data = b"".join(zipped.iter_raw())
            assert zipped.headers["content-encoding"] == "gzip"
            assert len(data) < len(plain.content)
            assert gzip.decompress(data) == plain.content
        again = browser.get("/ui/app.js", headers={"if-none-match": plain.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/ui/", "/ui/views", "/ui/none.js", "/ui/..%2f..%2fapp.py"])
def test_nothing_else_is_given_out(guarded: Proxy, path: str) -> None:
    assert guarded.client.get(path, headers=BROWSER).status_code in (400, 404)
