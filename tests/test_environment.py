from __future__ import annotations

import pytest

from proxy.environment import is_injected, misspelt

SETTINGS = {"port": (), "store": (), "backends": ("url", "name"), "models": ("window", "managed")}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("SPILLWAY_PORT", None),
        ("spillway_store", None),
        ("SPILLWAY_BACKENDS__0__URL", None),
        ("SPILLWAY_MODELS__a__b__window", None),
        ("OTHER_PORT", None),
        ("SPILLWAY_PROT", "SPILLWAY_PORT"),
        ("SPILLWAY_XYZZY", ""),
        ("SPILLWAY_BACKEND__0__URL", "SPILLWAY_BACKENDS__0__URL"),
        ("SPILLWAY_BACKENDS__0__ULR", "SPILLWAY_BACKENDS__0__URL"),
        ("SPILLWAY_BACKENDS__0__XYZZY", "SPILLWAY_BACKENDS"),
        ("SPILLWAY_PORT__X", "SPILLWAY_PORT"),
        ("SPILLWAY_STROE__X", "SPILLWAY_STORE"),
    ],
)
def test_a_name_that_is_no_setting_is_told_with_the_nearest(name: str, wrong: str | None) -> None:
    told = misspelt({name: "x"}, SETTINGS)
    if wrong is None:
        assert told is None
    else:
        assert told is not None
        assert told.startswith(f"{name}: no such setting")
        assert told.endswith(f"the nearest is {wrong}" if wrong else "no such setting")


def test_what_is_empty_or_put_there_by_others_is_left_alone() -> None:
    assert misspelt({"SPILLWAY_PROT": "", "SPILLWAY_SERVICE_HOST": "10.0.0.1"}, SETTINGS) is None
    assert is_injected("SPILLWAY_PORT", "tcp://10.0.0.1:8484")
    assert not is_injected("SPILLWAY_PORT", "8484")
