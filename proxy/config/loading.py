"""Read the settings: the only module that looks into the environment."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from proxy.config.names import is_injected, misspelt, removed_setting, upgraded, without_user
from proxy.core.errors import SettingError
from proxy.core.settings import BackendSetting, Limit, ModelOverrides, Settings

_log = logging.getLogger("spillway")

_NESTED: dict[str, type[BaseModel]] = {"backends": BackendSetting, "models": ModelOverrides}
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
    variables, warnings = upgraded(os.environ)  # noqa: TID251 - the one place
    wrong = misspelt(variables, {**known, "limits": get_args(Limit), "config": ()})
    if wrong is not None:
        raise SettingError(wrong)
    for warning in warnings:
        _log.warning("%s", warning)
    named = config or (Path(path) if (path := os.environ.get("SPILLWAY_CONFIG")) else None)  # noqa: TID251 - the one place
    if named is not None and not named.is_file():
        raise SettingError(f"config file {named} does not exist")

    class Sourced(_Sourced):
        model_config = SettingsConfigDict(toml_file=named)

    try:
        return Sourced(**{key: value for key, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise SettingError(_one_line(error)) from None
    except SettingsError as error:
        raise SettingError(_unparsed(error)) from None
    except (ValueError, OSError) as error:
        raise SettingError(f"config file {named} cannot be read: {error}".replace("\n", " ")) from None


class _Environment(EnvSettingsSource):
    """Environment without the variables of Kubernetes and Docker; a list may be words with commas between them."""

    @override
    def _load_env_vars(self) -> dict[str, str | None]:
        return {
            name: value
            for name, value in upgraded(super()._load_env_vars())[0].items()
            if not is_injected(name.upper(), value or "")
        }

    @override
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        lists = field is not None and get_origin(field.annotation) is tuple and field_name != "backends"
        return value if lists else super().decode_complex_value(field_name, field, value)


class _Sourced(Settings, BaseSettings):
    """Settings with their sources."""

    model_config = SettingsConfigDict(env_prefix="SPILLWAY_", env_nested_delimiter="__", env_ignore_empty=True)

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Prefer the command line (init) to the environment, and that to the TOML file."""
        del env_settings, dotenv_settings, file_secret_settings
        path = settings_cls.model_config.get("toml_file")
        file = (TomlConfigSettingsSource(settings_cls),) if path else ()
        return (init_settings, _Environment(settings_cls), *file)


def _unparsed(error: SettingsError) -> str:
    """Describe a setting in the environment that has to be JSON and is not. It may hold keys, so it is not shown."""
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
        return removed_setting(name) or f"{name}: no such setting; allowed are {', '.join(sorted(fields))}"
    value = repr(first.get("input"))
    if "KEY" in name or isinstance(first.get("input"), dict | list | tuple):
        value = "(hidden)"
    return f"{name}={without_user(value)}: {message[0].lower()}{message[1:]}"


def environment() -> dict[str, str]:
    """Copy the environment, for a program that is started."""
    return dict(os.environ)  # noqa: TID251 - the one place


def wants_traces() -> bool:
    """Return whether OpenTelemetry's variables name a place for traces (its "Environment Variable Specification")."""
    get = os.environ.get  # noqa: TID251 - the one place
    off = get("OTEL_SDK_DISABLED", "").lower() == "true" or get("OTEL_TRACES_EXPORTER", "otlp") == "none"
    return not off and any(map(get, ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")))


def state_folder() -> Path:
    """Return the folder for data of this user that outlasts a run (XDG Base Directory Specification 0.8)."""
    named = os.environ.get("XDG_STATE_HOME", "")  # noqa: TID251 - the one place
    return (Path(named) if named.startswith("/") else Path.home() / ".local/state") / "spillway"
