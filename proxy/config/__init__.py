"""Config: settings from the command line, the environment and TOML files. No other module reads the environment.

The command line wins over the environment, and that over the files. A setting is a field of `proxy.core.settings.Settings`, in the
environment `SPILLWAY_` and its name. Variables that other programs define are read here too: uvicorn's, OpenTelemetry's, and those
for HTTP proxies. `is_here` and `is_nearby` say whether a host is this machine, or in its network.
"""

import argparse
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from pathlib import Path
from typing import Any, get_origin
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from platformdirs import user_config_path
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from proxy.backends import KINDS
from proxy.core.errors import SettingError
from proxy.core.jsontext import loads_or_none
from proxy.core.settings import BackendSetting, ModelOverrides, ModelSettings, Settings

PREFIX = "SPILLWAY_"
_NESTED: dict[str, type[BaseModel]] = {"backends": BackendSetting, "models": ModelOverrides}
_FILE = "spillway.toml"

# Kubernetes sets variables in every pod for services in its namespace (pkg/kubelet/envvars). Those of a service called spillway,
# or spillway-redis, begin like ours.
_INJECTED = re.compile(
    r"SPILLWAY_(?:\w+_)?(?:(?:SERVICE_(?:HOST|PORT)\w*|PORT_\d+_\w+)=|PORT=(?:tcp|udp|sctp)://)", re.IGNORECASE
)
_LOCAL_NAMES = (".local", ".localdomain", ".lan", ".home.arpa", ".internal", ".intranet", ".home")
_OVERLAY = IPv4Network("100.64.0.0/10")


def config_files(config: Path | None = None, *, here: bool = True) -> list[Path]:
    """List the TOML files to read; later ones win over earlier ones.

    If `config` or `SPILLWAY_CONFIG` names a file, it is the only one. Otherwise they are `spillway.toml` in the user's configuration
    folder, and in the current folder if `here`.

    Raises:
        SettingError: the named file does not exist.
    """
    named = config or environment().get("SPILLWAY_CONFIG")
    if named and not Path(named).is_file():
        raise SettingError(f"config file {named} does not exist")
    usual = [user_config_path("spillway") / _FILE, *([Path(_FILE)] if here else [])]
    return [Path(named)] if named else [file for file in usual if file.is_file()]


def load_settings(config: Path | None = None, *, here: bool = True, **overrides: Any) -> Settings:
    """Read the settings from `config_files`, the environment, and `overrides` from the command line (None: not given).

    Raises:
        SettingError: a setting is wrong; the text is one line that names it, its value and the allowed values.
    """
    _check_names(environment())
    files = config_files(config, here=here)
    given = {name: value for name, value in overrides.items() if value is not None}

    class Sourced(_Sourced):
        model_config = SettingsConfigDict(toml_file=files or None)

    for file in files:
        try:
            tomllib.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise SettingError(f"config file {file} cannot be read: {error}".replace("\n", " ")) from None
    try:
        settings = Sourced(**given)
    except ValidationError as error:
        path = error.errors()[0]["loc"]
        place = "" if path and path[0] in given else _place(path, files)
        raise SettingError(f"{place}{_one_line(error)}") from None
    for index, backend in enumerate(settings.backends):
        if backend.kind not in KINDS:
            name = f"{_place(('backends', 'kind'), files)}{PREFIX}BACKENDS__{index}__KIND"
            raise SettingError(f"{name}={backend.kind!r}: must be one of {', '.join(KINDS)}")
    return settings


def check_tokenizers(settings: Settings) -> None:
    """Check that the tokenizer files named by the settings exist.

    Raises:
        SettingError: a file does not exist.
    """
    for glob, model in settings.models.items():
        named = model.tokenizer or ""
        if re.match(r"[/~.\\]|\w:\\|.*\.json$", named) and not Path(named).expanduser().exists():
            name = f"{PREFIX}MODELS__{glob.upper()}__TOKENIZER"
            raise SettingError(f"{name}={named!r}: there is no such tokenizer.json, nor a folder with one")


def _place(path: Sequence[int | str], files: Sequence[Path]) -> str:
    """Return file and line of a wrong setting, or an empty string if it is in the environment or in no file."""
    names = [part for part in path if isinstance(part, str)]
    if not names or _variable(names[0]):
        return ""
    spelled = re.compile(rf"""\s*(?:\[+\s*)?(?:[\w."'*-]+\.)?["']?{re.escape(names[-1])}["']?\s*[=\].]""")
    for file in reversed(files):
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
            if spelled.match(line):
                return f"{file}:{number}: "
    return ""


def _variable(name: str) -> str:
    """Return the variable that sets this setting or a part of it; empty if none does."""
    spelled = re.compile(rf"{PREFIX}{name}(?:__.*)?", re.IGNORECASE)
    found = (each for each, value in environment().items() if value and spelled.fullmatch(each))
    return next((each for each in found if not _INJECTED.match(f"{each}={environment()[each]}")), "")


def origins(config: Path | None = None, **overrides: Any) -> dict[str, str]:
    """Return where each setting has its value from; the arguments are those of `load_settings`."""
    files = config_files(config)
    tables = [(file, tomllib.loads(file.read_text(encoding="utf-8"))) for file in files]
    return {
        name: "command line"
        if overrides.get(name) is not None
        else _variable(name)
        or next(
            (_place((name,), [file])[:-2] or str(file) for file, table in reversed(tables) if name in table), "default"
        )
        for name in Settings.model_fields
    }


def _check_names(variables: Mapping[str, str]) -> None:
    """Check that every variable with our prefix is a setting.

    Raises:
        SettingError: a variable is not; the text names the first such, and the nearest setting.
    """
    for name, value in sorted(variables.items()):
        setting = name.upper().removeprefix(PREFIX).lower().split("__")[0]
        is_ours = name.upper().startswith(PREFIX) and value and not _INJECTED.match(f"{name}={value}")
        if is_ours and setting not in {*Settings.model_fields, "config"}:
            nearest = get_close_matches(setting, Settings.model_fields, n=1)
            hint = f"; the nearest is {PREFIX}{nearest[0].upper()}" if nearest else ""
            raise SettingError(f"{name}: no such setting{hint}")


class _Environment(EnvSettingsSource):
    """Environment without the variables of Kubernetes; what is not an object is left for its own validator to parse."""

    @override
    def _load_env_vars(self) -> dict[str, str | None]:
        variables = super()._load_env_vars()
        return {name: value for name, value in variables.items() if not _INJECTED.match(f"{name}={value}")}

    @override
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        decoded = None if get_origin(field.annotation) is tuple else loads_or_none(value.encode())
        return decoded if isinstance(decoded, dict) else value


class _Sourced(Settings, BaseSettings):
    """Settings with their sources."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True)

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *others: PydanticBaseSettingsSource,
        **named: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Prefer the command line (init) to the environment, and the environment to the TOML files."""
        file = (TomlConfigSettingsSource(settings_cls),) if settings_cls.model_config.get("toml_file") else ()
        return (init_settings, _Environment(settings_cls), *file)


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if part != "[key]"]  # pydantic's mark for a wrong key of a table
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return message
    name = PREFIX + "__".join(path).upper()
    if first["type"] == "extra_forbidden":
        fields = (_NESTED.get(path[0], Settings) if len(path) > 1 else Settings).model_fields
        return f"{name}: no such setting; allowed are {', '.join(sorted(fields))}"
    is_secret = "KEY" in name or path == ["backends"] or isinstance(first.get("input"), dict | list | tuple)
    value = "(hidden)" if is_secret else without_user(repr(first.get("input")))
    return f"{name}={value}: {message[0].lower()}{message[1:]}"


def without_user(text: str) -> str:
    """Remove users and passwords from the URLs in a text."""
    return re.sub(r"[^/\s'\"]*@", "…@", text)


# For `spillway serve --help` and the docs


def listed_settings() -> list[tuple[str, FieldInfo]]:
    """List the settings with their names: the server's own first, then those that can differ between models."""
    return sorted(Settings.model_fields.items(), key=lambda each: each[0] in ModelSettings.model_fields)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting, in the form in which its variable is set."""
    parser.usage = "%(prog)s [OPTIONS]"
    group = parser.add_argument_group("settings, each also in the environment (SPILLWAY_PORT) or in spillway.toml")
    for name, field in listed_settings():
        if name == "backends":  # `--backend` is its option
            continue
        default = field.get_default(call_default_factory=True)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default).removesuffix(".0")
        text = f"{field.description}{f' [{shown}]' if default not in (None, (), {}) else ''}"
        group.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text.replace("%", "%%"))


# Other variables of the environment


def environment() -> dict[str, str]:
    """Return a copy of the environment."""
    return dict(os.environ)  # noqa: TID251 - the one place


def server_options() -> dict[str, Any]:
    """Read options for uvicorn from its own variables: `UVICORN_SSL_CERTFILE`, `_SSL_KEYFILE`, `_UDS` and `_ROOT_PATH`.

    Raises:
        SettingError: a file does not exist, there is a key without a certificate, or the root path is malformed.
    """
    names = ("ssl_certfile", "ssl_keyfile", "uds", "root_path")
    options = {name: value for name in names if (value := environment().get(f"UVICORN_{name.upper()}"))}
    for name in names[:2]:
        if name in options and not Path(options[name]).is_file():
            raise SettingError(f"UVICORN_{name.upper()}={options[name]!r}: there is no such file")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise SettingError("UVICORN_SSL_KEYFILE is set without UVICORN_SSL_CERTFILE: set both, or neither")
    if not re.fullmatch(r"(?:/[\w.~-]+)*", options.setdefault("root_path", "").rstrip("/"), re.ASCII):
        raise SettingError(f"UVICORN_ROOT_PATH={options['root_path']!r} must be a path such as /spillway")
    return options | {"root_path": options["root_path"].rstrip("/")}


def wants_traces() -> bool:
    """Return whether OpenTelemetry's variables name an endpoint for traces (its "Environment Variable Specification")."""
    get = environment().get
    off = get("OTEL_SDK_DISABLED", "").lower() == "true" or get("OTEL_TRACES_EXPORTER", "otlp") == "none"
    return not off and any(map(get, ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")))


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for a backend (`HTTPS_PROXY` and similar), or None to connect directly.

    A backend on this machine is always reached directly.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or is_here(host) or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_here(host: str) -> bool:
    """Return whether a host is this machine, or a container's host by Docker's name for it."""
    host = host.removesuffix(".")
    if (address := _address(host)) is None:
        return host in {"localhost", "host.docker.internal"} or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def is_nearby(host: str) -> bool:
    """Return whether a host is this machine or in its network, where tokens cost nothing.

    The host qualifies by its address (RFC 1918, 4193, 6598 for overlay networks, and link-local), or by a name that cannot be public:
    a single word, like the services of a compose file, or one under a domain for local use (RFC 6762, 8375, and ICANN's `.internal`).
    """
    host = host.removesuffix(".").lower()
    if is_here(host):
        return True
    if (address := _address(host)) is None:
        return "." not in host or host.endswith(_LOCAL_NAMES)
    return address.is_private or address.is_link_local or address in _OVERLAY


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Parse a host as an address, with mapped IPv4 addresses as IPv4; None for a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
