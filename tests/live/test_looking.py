"""Who may look and act: keys, sessions of browsers, other pages, other names."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.api.live import files, sessions
from tests.fakes import LlamaCppFake, scripted
from tests.live.watching import viewing
from tests.proxying import Proxy, running_proxy

ANNE, BERT, BOSS = ({"authorization": f"Bearer {name}-key-12345"} for name in ("anne", "bert", "boss"))
SAID = {"messages": [{"role": "user", "content": "my secret is a pineapple"}]}
READS = (
    *("/spillway/conversations", "/spillway/outcomes", "/spillway/savings", "/spillway/calibration"),
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


def code(answer: httpx.Response) -> tuple[int, str | None]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return answer.status_code, error["code"]


def rows(proxy: Proxy, **headers: str) -> list[dict[str, Any]]:
    answer = proxy.client.get("/spillway/conversations", headers=headers)
    assert answer.status_code == 200
    told: list[dict[str, Any]] = answer.json()["conversations"]
    return told


@contextmanager
def signed_in(proxy: Proxy, key: str) -> Iterator[tuple[httpx.Client, str]]:
    """A browser with a session, and its token for actions."""
    with httpx.Client(base_url=proxy.url, timeout=20, trust_env=False) as client:
        answer = client.post("/spillway/session", json={"key": key}, headers={"origin": proxy.url})
        assert answer.status_code == 200
        yield client, answer.json()["csrf"]


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
    assert (
        guarded.client.get(f"/spillway/outcomes?conversation={anne['id']}", headers=BERT).json()["outcomes"]
        == []
    )
    with viewing(guarded, **BERT) as seen:
        snapshot = seen.until("snapshot")
        assert [row["id"] for row in snapshot["conversations"]] == [bert["id"]]
        guarded.chat(SAID, **ANNE)
        guarded.chat(SAID, **BERT)
        seen.until("conversation", lambda row: row["state"] == "idle" and row["turns"] > 1)
        seen.until("outcome")
        owners = {told["owner"] for name, told in seen.events if name in ("conversation", "outcome")}
        assert owners == {bert["owner"]}


def test_an_admin_sees_all_figures_and_what_was_said_only_if_it_may_be_shown(
    guarded: Proxy, fake: LlamaCppFake
) -> None:
    told = rows(guarded, **BOSS)
    assert len({row["owner"] for row in told}) == 2
    assert {row["title"] for row in told} == {None}
    assert (
        "pineapple" not in guarded.client.get(f"/spillway/conversations/{told[0]['id']}", headers=BOSS).text
    )
    assert code(guarded.chat(SAID, **BOSS)) == (401, "invalid_api_key")  # it is for looking
    with running_proxy(fake, admin_keys=("boss-key-12345",), show_content=True) as shown:
        shown.chat(SAID)
        assert [row["title"] for row in rows(shown, **BOSS)] == ["my secret is a pineapple"]
        assert code(shown.client.get("/spillway/conversations")) == (401, "invalid_api_key")


def test_on_another_address_without_keys_only_an_admin_looks(fake: LlamaCppFake) -> None:
    with running_proxy(fake, host="0.0.0.0", allow_open=True, admin_keys=("boss-key-12345",)) as proxy:
        assert proxy.chat(SAID).status_code == 200
        assert code(proxy.client.get("/spillway/conversations")) == (401, "invalid_api_key")
        assert len(rows(proxy, **BOSS)) == 1


def test_who_comes_through_a_proxy_in_front_is_not_on_this_machine(fake: LlamaCppFake) -> None:
    with running_proxy(fake) as proxy:
        assert rows(proxy) == []
        for name in ("x-forwarded-for", "forwarded", "x-real-ip"):
            answer = proxy.client.get("/spillway/conversations", headers={name: "203.0.113.7"})
            assert code(answer) == (401, "invalid_api_key")


# Browsers


def test_a_browser_shows_its_key_once_and_gets_a_cookie_for_it(guarded: Proxy) -> None:
    assert guarded.client.get("/spillway/session").json() | {"version": ""} == {
        "role": None,
        "content": False,
        "csrf": None,
        "version": "",
        "base_url": f"{guarded.url}/v1",
    }
    assert code(guarded.client.post("/spillway/session", json={"key": "wrong"})) == (401, "invalid_api_key")
    assert code(guarded.client.post("/spillway/session", json={"key": " "})) == (400, None)
    with httpx.Client(base_url=guarded.url, trust_env=False) as browser:
        begun = browser.post("/spillway/session", json={"key": "anne-key-12345"})
        assert (begun.json()["role"], begun.json()["content"]) == ("key", True)
        cookie = begun.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} < {part.strip() for part in cookie.split(";")}
        assert "Secure" not in cookie
        assert "anne" not in cookie
        for path in ("/spillway/conversations", "/spillway/models", "/openapi.json", "/docs"):
            assert browser.get(path).status_code == 200
        assert code(browser.post("/v1/chat/completions", json=SAID)) == (401, "invalid_api_key")
        assert browser.get("/spillway/session").json()["csrf"] == begun.json()["csrf"]
        assert code(browser.delete("/spillway/session")) == (403, "csrf_token_missing")
        ended = browser.delete("/spillway/session", headers={"x-spillway-csrf": begun.json()["csrf"]})
        assert ended.status_code == 204
        browser.cookies.clear()
        browser.cookies.set("spillway_session", cookie.split(";")[0].partition("=")[2])
        assert code(browser.get("/spillway/conversations")) == (401, "invalid_api_key")
    secure = guarded.client.post(
        "/spillway/session", json={"key": "anne-key-12345"}, headers={"x-forwarded-proto": "https"}
    )
    assert "; Secure" in secure.headers["set-cookie"]
    assert secure.json()["base_url"].startswith("https://")


def test_an_admins_session_sees_what_the_key_sees(guarded: Proxy) -> None:
    with signed_in(guarded, "boss-key-12345") as (browser, _):
        assert browser.get("/spillway/session").json()["role"] == "admin"
        assert len(browser.get("/spillway/conversations").json()["conversations"]) >= 2
        assert browser.get("/spillway/models").status_code == 200


def test_a_session_ends_by_itself(guarded: Proxy, fake: LlamaCppFake) -> None:
    now = [1000.0]
    with (
        running_proxy(fake, api_keys=("anne-key-12345",), clock=lambda: now[0]) as proxy,
        signed_in(proxy, "anne-key-12345") as (browser, _),
    ):
        now[0] += sessions.HOURS * 3600 - 1
        assert browser.get("/spillway/conversations").status_code == 200
        now[0] += 2
        assert code(browser.get("/spillway/conversations")) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "page",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_another_page_uses_no_session_though_the_browser_sends_the_cookie(
    guarded: Proxy, page: dict[str, str]
) -> None:
    with signed_in(guarded, "anne-key-12345") as (browser, csrf):
        for method, path in (("GET", "/spillway/conversations"), ("DELETE", "/spillway/session")):
            answer = browser.request(method, path, headers={**page, "x-spillway-csrf": csrf})
            assert code(answer) == (403, "origin_not_allowed")
        assert code(browser.post("/spillway/session", json={"key": "bert-key-12345"}, headers=page)) == (
            403,
            "origin_not_allowed",
        )
        assert browser.get("/spillway/conversations").status_code == 200


def test_pages_that_may_ask_models_may_not_look(fake: LlamaCppFake) -> None:
    with running_proxy(fake, cors=("*",)) as proxy:
        page = {"origin": "https://chat.example.com"}
        assert proxy.chat(SAID, **page).status_code == 200
        for path in READS:
            assert code(proxy.client.get(path, headers=page)) == (403, "origin_not_allowed")


@pytest.mark.parametrize("path", [*READS, "/spillway/session", "/ui/app.js"])
def test_a_name_pointed_at_this_machine_gets_nothing(fake: LlamaCppFake, path: str) -> None:
    with running_proxy(fake) as proxy:
        answer = proxy.client.get(path, headers={"host": "evil.example"})
        assert code(answer) == (403, "host_not_allowed")


def test_an_action_of_a_browser_needs_the_token_also_where_nothing_is_guarded(fake: LlamaCppFake) -> None:
    with running_proxy(fake) as proxy:
        own = {"origin": proxy.url}
        assert code(proxy.client.delete("/spillway/session", headers=own)) == (403, "csrf_token_missing")
        csrf = proxy.client.get("/spillway/session").json()["csrf"]
        answer = proxy.client.delete("/spillway/session", headers={**own, "x-spillway-csrf": csrf})
        assert answer.status_code == 204
        assert proxy.client.delete("/spillway/session").status_code == 204  # a script


def test_the_session_stays_here(guarded: Proxy, fake: LlamaCppFake) -> None:
    for cookies, left in (("a=1; spillway_session=abc; b=2", "a=1; b=2"), ("spillway_session=abc", None)):
        guarded.client.get("/some/path", headers={**ANNE, "cookie": cookies})
        assert fake.requests[-1].path == "/some/path"
        assert dict(fake.requests[-1].headers).get("cookie") == left


# The page's files


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: LlamaCppFake) -> Iterator[Proxy]:
    (tmp_path / "views").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Spillway</title>" + " " * 500)
    (tmp_path / "views" / "app.js").write_text("export const answer = 42;\n" * 100)
    (tmp_path / "notes.md").write_text("not of the page")
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    with running_proxy(fake, api_keys=("anne-key-12345",)) as proxy:
        yield proxy


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_gets_the_page_and_a_program_what_the_backend_has_there(
    page: Proxy, fake: LlamaCppFake
) -> None:
    shown = page.client.get("/", headers=BROWSER)
    assert shown.status_code == 200
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert (shown.headers["x-content-type-options"], shown.headers["referrer-policy"]) == (
        "nosniff",
        "no-referrer",
    )
    assert "<title>Spillway</title>" in shown.text
    assert page.client.head("/", headers=BROWSER).status_code == 200
    before = len(fake.requests)
    for accept in ("application/json", "*/*"):
        page.client.get("/", headers={**ANNE, "accept": accept})
    page.client.head("/", headers=ANNE)
    assert [each.path for each in fake.requests[before:]] == ["/"] * 3
    assert code(page.client.get("/")) == (401, "invalid_api_key")


def test_files_are_compressed_and_not_sent_twice(page: Proxy) -> None:
    with httpx.Client(base_url=page.url, trust_env=False) as browser:
        plain = browser.get("/ui/views/app.js", headers={"accept-encoding": "identity"})
        assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
        with browser.stream("GET", "/ui/views/app.js", headers={"accept-encoding": "gzip"}) as zipped:
            data = b"".join(zipped.iter_raw())
            assert zipped.headers["content-encoding"] == "gzip"
            assert len(data) == int(zipped.headers["content-length"]) < len(plain.content)
            assert gzip.decompress(data) == plain.content
        again = browser.get("/ui/views/app.js", headers={"if-none-match": plain.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-security-policy" in again.headers


@pytest.mark.parametrize("path", ["/ui/", "/ui/views", "/ui/notes.md", "/ui/none.js", "/ui/..%2f..%2fapp.py"])
def test_nothing_else_is_given_out(page: Proxy, path: str) -> None:
    assert page.client.get(path, headers=BROWSER).status_code in (400, 404)
