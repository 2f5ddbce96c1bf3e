"""Where backends are."""

from __future__ import annotations

import pytest

from proxy.config import is_nearby


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost.", True),
        ("host.docker.internal", True),
        ("192.168.1.20", True),
        ("10.0.0.7", True),
        ("::ffff:10.0.0.7", True),
        ("fd12::1", True),
        ("fe80::1", True),
        ("169.254.3.4", True),
        ("100.101.102.103", True),  # Tailscale's
        ("ollama", True),
        ("gpu.lan", True),
        ("Studio.local", True),
        ("box.home.arpa", True),
        ("openrouter.ai", False),
        ("api.example.com", False),
        ("8.8.8.8", False),
        ("2606:4700::1111", False),
        ("100.128.0.1", False),
        ("notlocal", True),
        ("evil-lan", True),
        ("my.notlan", False),
    ],
)
def test_what_is_on_this_machine_or_in_its_network_is_near(host: str, near: bool) -> None:
    assert is_nearby(host) is near
