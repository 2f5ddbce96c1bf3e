import logging

import pytest

from proxy.app import create_app
from proxy.config import load_settings
from proxy.core.errors import SettingError
from proxy.core.settings import BackendSetting
from tests.fakes import VllmFake, scripted
from tests.proxying import running_proxy

FAR = BackendSetting(url="http://far.invalid:81/v1", name="far")


@pytest.fixture(autouse=True)
def _no_proxies_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)


def test_requests_go_through_it_and_the_log_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="spillway")
    with VllmFake(brain=scripted(["from afar"] * 2)) as fake:
        monkeypatch.setenv("HTTP_PROXY", fake.url.replace("://", "://me:s3cret@"))
        with running_proxy(FAR) as proxy:
            for stream in (False, True):
                answer = proxy.chat({"model": "fake-model", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
                assert (answer.status_code, answer.headers["x-spillway-window"]) == (200, "4096")
            assert all(request.header("host") == "far.invalid:81" for request in fake.requests)
        told = f"backend far is reached through the proxy at {fake.url.removeprefix('http://')}"
        assert told in caplog.text
        assert "s3cret" not in caplog.text


@pytest.mark.parametrize(("proxy", "word"), [("gopher://p:1", "gopher"), ("http://p:x", "port")])
def test_a_proxy_that_can_not_be_used_stops_the_start(proxy: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(SettingError, match=word):
        create_app(load_settings(backends=(FAR,), store="memory://"))
