"""Reading the settings: the only place that looks into the environment."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsConfigDict, SettingsError

from proxy.environment import misspelt, without_user
from proxy.errors import SettingError
from proxy.settings.entries import BackendSetting, ModelSetting
from proxy.settings.settings import Settings
from proxy.shortening.policy import Limit

_NESTED: dict[str, type[BaseModel]] = {"backends": BackendSetting, "models": ModelSetting}
_EXAMPLES = {
    "SPILLWAY_BACKENDS": '[{"url": "http://127.0.0.1:1234"}]',
    "SPILLWAY_LIMITS": '{"lines": 400}',
    "SPILLWAY_MODELS": '{"qwen*": {"window": 8192}}',
}


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings.

    Args:
        config: TOML file; default: `SPILLWAY_CONFIG`, else none.
        overrides: values from the command line; None means not given.

    Raises:
        SettingError: one line that names the setting, the value and what is allowed.
    """
    known = {name: _NESTED[name].model_fields if name in _NESTED else () for name in Settings.model_fields}
    wrong = misspelt(os.environ, {**known, "limits": get_args(Limit), "config": ()})  # noqa: TID251 - the one place
    if wrong is not None:
        raise SettingError(wrong)
    named = config or (Path(path) if (path := os.environ.get("SPILLWAY_CONFIG")) else None)  # noqa: TID251 - the one place
    if named is not None and not named.is_file():
        raise SettingError(f"config file {named} does not exist")

    class Sourced(Settings):
        model_config = SettingsConfigDict(toml_file=named)

    try:
        return Sourced(**{key: value for key, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise SettingError(_one_line(error)) from None
    except SettingsError as error:
        raise SettingError(_unparsed(error)) from None
    except (ValueError, OSError) as error:
        raise SettingError(f"config file {named} cannot be read: {error}".replace("\n", " ")) from None


def _unparsed(error: SettingsError) -> str:
    """A setting in the environment that has to be JSON and is not. It may hold keys, so it is not shown."""
    found = re.search(r'field "(\w+)"', str(error))
    name = f"SPILLWAY_{found.group(1).upper()}" if found is not None else "a setting"
    cause = str(error.__cause__ or error).replace("\n", " ")
    return f"{name} must be JSON, such as {_EXAMPLES.get(name, '[]')}, but is not: {cause}"


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if part != "[key]"]  # of a table, where its key is wrong
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return message
    name = "SPILLWAY_" + "__".join(path).upper()
    if first["type"] == "extra_forbidden":
        fields = _NESTED.get(path[0], Settings).model_fields if len(path) > 1 else Settings.model_fields
        return f"{name}: no such setting; allowed are {', '.join(sorted(fields))}"
    value = repr(first.get("input"))
    if "KEY" in name or isinstance(first.get("input"), dict | list | tuple):
        value = "(hidden)"
    return f"{name}={without_user(value)}: {message[0].lower()}{message[1:]}"


def environment() -> dict[str, str]:
    """All of it, for a program that is started."""
    return dict(os.environ)  # noqa: TID251 - the one place


def wants_traces() -> bool:
    """Whether OpenTelemetry's own variables say where traces go (its specification, "Environment Variable Specification")."""
    said = os.environ.get  # noqa: TID251 - the one place
    off = said("OTEL_SDK_DISABLED", "").lower() == "true" or said("OTEL_TRACES_EXPORTER", "otlp") == "none"
    return not off and any(map(said, ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")))


def state_folder() -> Path:
    """Where what lasts beyond a run is kept for this user (XDG Base Directory Specification 0.8)."""
    named = os.environ.get("XDG_STATE_HOME", "")  # noqa: TID251 - the one place
    return (Path(named) if named.startswith("/") else Path.home() / ".local/state") / "spillway"
