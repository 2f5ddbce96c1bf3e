"""What each kind reads from the recorded replies of its server, and what it asks for that."""

from typing import Any, TypeAlias

import pytest

from proxy.backends import BACKENDS, backend_of, detect, fields
from proxy.backends.base import Backend, Probe, Reply
from proxy.backends.openrouter import cancels
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.core.jsontext import dig
from tests.backends.driver import paths, payloads, play

LMSTUDIO, OLLAMA, LLAMACPP, SWAP, VLLM, ROUTER = (
    payloads(kind) for kind in ("lmstudio", "ollama", "llamacpp", "llamaswap", "vllm", "openrouter")
)
FLAGS, TRAILING, QUOTE = Continuation
LIST = "/v1/models"
UNKNOWN_200 = Reply(200, LMSTUDIO["unknown_path"])
Replies = dict[str, Any]

# -- telling the kinds apart, each by the replies of the others

KOBOLD = {"/props": {"n_ctx": 4096, "default_generation_settings": {"n_ctx": 4096}}}
SERVERS: dict[str, tuple[str, dict[str, Any], Reply]] = {
    "LM Studio 0.4": ("lmstudio", {"/api/v1/models": LMSTUDIO["v1"], LIST: LMSTUDIO["openai"]}, UNKNOWN_200),
    "LM Studio 0.3": ("lmstudio", {"/api/v0/models": LMSTUDIO["v0"], LIST: LMSTUDIO["openai"]}, UNKNOWN_200),
    "status 200 for an unknown path": ("", {}, UNKNOWN_200),
    "Ollama": ("ollama", {"/api/version": OLLAMA["version"], "/api/tags": OLLAMA["tags"], LIST: OLLAMA["openai"]}, Reply(404)),
    **{
        f"{name}, which has Ollama's paths": (
            kind,
            {
                "/api/version": OLLAMA["version"], "/api/tags": {"models": [{"name": tag, "model": tag} | told]},
                LIST: {"object": "list", "data": [{"id": model, "owned_by": owner}]}, **more,
            },
            Reply(404),
        )
        for name, kind, owner, model, tag, told, more in (
            ("Lemonade", "generic", "lemonade", "m", "m:latest", {}, {}),
            ("LocalAI", "generic", "localai", "m", "m:latest", {}, {}),
            ("Docker Model Runner", "generic", "docker", "ai/m", "ai/m", {}, {}),
            ("mlx-serve", "generic", "mlx-serve", "m", "m", {}, {}),
            ("KoboldCpp", "llamacpp", "koboldcpp", "koboldcpp/m", "koboldcpp", {"model": "koboldcpp/m"}, KOBOLD),
            ("a user's own model, which is Ollama's", "ollama", "me", "hf.co/me/m:Q4", "hf.co/me/m:Q4", {}, {}),
        )
    },
    "a version alone": ("", {"/api/version": {"version": "0.6.5"}, "/version": VLLM["version"]}, Reply(404)),
    "llama.cpp": ("llamacpp", {"/props": LLAMACPP["props"], LIST: LLAMACPP["models"]}, Reply(404, {"error": {}})),
    "llama.cpp, loading": ("llamacpp", {}, Reply(503, LLAMACPP["loading"])),
    "llama.cpp, router": ("llamacpp", {"/props": LLAMACPP["router_props"], LIST: LLAMACPP["router_models"]}, Reply(404)),
    "another server that is busy": ("", {}, Reply(503, {"error": {"message": "Busy", "type": "unavailable_error"}})),
    "llama-swap": ("llamaswap", {LIST: SWAP["models"], "/api/version": {"version": "238"}}, Reply(404)),
    "vLLM": ("vllm", {LIST: VLLM["models"]}, Reply(404, {"detail": "Not Found"})),
    "OpenRouter's shape": ("openrouter", {LIST: ROUTER["models"]}, Reply(404)),
    "llama-cpp-python": ("generic", {LIST: {"object": "list", "data": [{"id": "m", "owned_by": "me"}]}}, Reply(404)),
    "a web page for everything": ("", {}, Reply(200)),
    "nobody": ("", {}, Reply(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_each_server_is_told_apart(name: str) -> None:
    kind, replies, otherwise = SERVERS[name]
    found, _ = play(detect("http://127.0.0.1:9999"), replies, otherwise=otherwise)
    assert (found.kind if found else "") == kind


def test_openrouter_is_told_by_its_address_without_asking() -> None:
    for url in ("https://openrouter.ai/api", "https://eu.openrouter.ai/api"):
        found, asked = play(detect(url), {})
        assert (found and found.kind, asked) == ("openrouter", [])
    for url in ("https://openrouter.ai.example.org/api", "http://h/openrouter.ai", "http://notopenrouter.ai"):
        assert play(detect(url), {})[0] is None


@pytest.mark.parametrize("reply", [{"data": []}, {"object": "list"}, [], "<html>", None])
def test_only_a_list_in_openais_shape_shows_a_backend(reply: object) -> None:
    assert not play(backend_of("generic").detect(), {LIST: reply})[0]


def test_every_kind_can_be_named() -> None:
    assert [backend_of(backend.kind) for backend in BACKENDS] == list(BACKENDS)
    assert BACKENDS[-1].kind == "generic"
    with pytest.raises(KeyError):
        backend_of("tgi")


# -- profiles


def generic(**entry: Any) -> Replies:
    return {LIST: {"object": "list", "data": [{"id": "m", "object": "model"} | entry]}}


def swapped(command: str, model: str = "author/walk") -> Replies:
    running = {"model": model, "state": "ready", "cmd": command}
    return {LIST: SWAP["models"], "/running": {"running": [running]}}


def props(**changed: Any) -> Replies:
    return {"/props?model=walk&autoload=false": LLAMACPP["props"] | changed, LIST: LLAMACPP["models"]}


def ollama(show: str, *, loaded: bool = False, **changed: Any) -> Replies:
    return {"/api/ps": OLLAMA["ps" if loaded else "ps_empty"], "/api/show": OLLAMA[show] | changed}


def endpoints(*found: dict[str, Any], model: str = "a/b") -> Replies:
    return {f"/v1/models/{model}/endpoints": {"data": {"endpoints": list(found)}}}


CODER = "qwen/qwen3-coder:free"
SERVING = {f"/v1/models/{CODER}/endpoints": ROUTER["endpoints"]}
CATALOGUE = {LIST: ROUTER["models"]}
V1 = {"/api/v1/models": LMSTUDIO["v1"], LIST: LMSTUDIO["openai"]}
V0 = {"/api/v0/models": LMSTUDIO["v0"], LIST: LMSTUDIO["openai"]}
TWO = [{"id": f"m:{n}", "config": {"context_length": length}} for n, length in ((1, 4096), (2, 32768))]

LOADED, LISTED, CONFIGURED = Trust.LOADED, Trust.LISTED, Trust.CONFIGURED
Row: TypeAlias = tuple[str, str, Replies, dict[str, Any]]


def row(kind: str, model: str, replies: Replies, **known: Any) -> Row:
    """A kind and model, what its server replies, and what is to be known then; a window with its trust."""
    return kind, model, replies, known


PROFILES: dict[str, Row] = {
    **{
        f"generic, {name}": row("generic", "m", generic(**{name: value}), window=(8192, LISTED))
        for name, value in (
            *(("context_length", 8192), ("context_window", 8192), ("max_context_length", 8192.0)),
            *(("max_model_len", "8192"), ("max_input_tokens", 8192), ("maxContextLength", 8192), ("max_context", 8192)),
            ("parameters", {"max_seq_len": 8192, "cache_size": 4096}),
            ("recipe_options", {"ctx_size": 8192}),
            ("details", {"context_length": "8192", "parameter_size": "4B"}),
        )
    },
    **{
        f"generic, of a loaded instance, {name}": row(
            "generic", "m", generic(context_length=131072, **told), window=(8192, LOADED)
        )
        for name, told in (("n_ctx", {"meta": {"n_ctx": 8192}}), ("loaded", {"loaded_context_length": 8192}))
    },
    **{
        f"generic, of the model alone, {name}": row("generic", "m", generic(**told), window=None, trained_window=trained)
        for name, told, trained in (
            ("Lemonade, automatic", {"max_context_window": 40960, "recipe_options": {"ctx_size": -1}}, 40960),
            ("n_ctx_train", {"meta": {"n_ctx": 0, "n_ctx_train": 32768}}, 32768),
            ("GGUF", {"model_info": {"llama.context_length": 131072}, "context_window": None}, 131072),
            ("nothing", {"context_length": "auto", "max_model_len": True, "ctx_size": 0}, None),
        )
    },
    "generic, the least of two": row(
        "generic", "m", generic(max_input_tokens=8192, context_length=131072), window=(8192, LISTED)
    ),
    "generic, no figure": row("generic", "m", generic(context_length="many"), window=None, continuation=QUOTE),
    "generic, not listed": row("generic", "other", generic(context_length=8192), window=None, provisional=False),
    "llama.cpp": row(
        "llamacpp",
        "walk",
        props(),
        window=(1024, LOADED),
        trained_window=131072,
        tools=True,
        vision=False,
        tokenizer="/models/Qwen3-8B-Q4_K_M.gguf",
        continuation=FLAGS,
        provisional=False,
    ),
    "llama.cpp, by any name": row(
        "llamacpp",
        "gpt-4",
        {"/props?model=gpt-4&autoload=false": LLAMACPP["props"], LIST: LLAMACPP["models"]},
        window=(1024, LOADED),
        trained_window=131072,
    ),
    "router, loaded: the child's own word": row(
        "llamacpp",
        "qwen/qwen3:8b",
        {"/props?model=qwen%2Fqwen3%3A8b&autoload=false": LLAMACPP["props"], LIST: LLAMACPP["router_models"]},
        window=(1024, LOADED),
        provisional=False,
    ),
    "router, by an alias": row("llamacpp", "big", {LIST: LLAMACPP["router_models"]}, window=(8192, LOADED), vision=True),
    "router, not loaded": row("llamacpp", "small", {LIST: LLAMACPP["router_models"]}, window=None, provisional=True),
    **{
        f"llama.cpp, template {caps}": row("llamacpp", "walk", props(chat_template_caps=caps), tools=tools)
        for caps, tools in (
            ({"supports_tools": True, "supports_tool_calls": False}, False),
            ({"supports_tools": False, "supports_tool_calls": True}, False), ({"supports_tools": True}, True),
            ({"supports_tools": "yes"}, None), (None, None),
        )
    },
    **{
        f"llama-swap, {name}, does not run": row(
            "llamaswap", name, {LIST: SWAP["models"]}, window=(16384, CONFIGURED), provisional=True
        )
        for name in ("qwen3-8b", "team")
    },
    **{
        f"llama-swap, {command}": row(
            "llamaswap",
            "author/walk",
            swapped(command),
            window=window and (window, LOADED),
            continuation=way,
            provisional=False,
        )
        for command, window, way in (
            ("llama-server --port 5801 -m walk.gguf -c 2048", 2048, FLAGS),
            ("/opt/llama-server --ctx-size=8192 --parallel 2 -m walk.gguf", 4096, FLAGS),
            ("llama-server -c 8192 -np 2 -kvu -m walk.gguf", 8192, FLAGS),
            ("docker run vllm/vllm-openai:v0.10.0 --model a/b\n--max-model-len 65536", 65536, FLAGS),
            ("llama-server --port 5801 -c 0", None, FLAGS),
            ("tabby --rpc-c 2048", None, QUOTE),
            ("", None, QUOTE),
        )
    },
    "llama-swap, the command before the configuration": row(
        "llamaswap", "told", swapped("llama-server -c 4096", "told"), window=(4096, LOADED)
    ),
    "LM Studio, loaded twice": row(
        "lmstudio",
        "qwen/qwen3-8b",
        V1,
        window=(8192, LOADED),
        trained_window=40960,
        tools=True,
        vision=False,
        tokenizer="qwen3",
        continuation=TRAILING,
        provisional=False,
    ),
    "LM Studio, one of two instances": row(
        "lmstudio", "m:2", {"/api/v1/models": {"models": [{"key": "m", "loaded_instances": TWO}]}}, window=(32768, LOADED)
    ),
    "LM Studio, a variant": row("lmstudio", "qwen/qwen3-8b@q8_0", V1, window=(8192, LOADED)),
    "LM Studio, not loaded": row("lmstudio", "google/gemma-3-4b", V1, window=None, vision=True, provisional=True),
    "LM Studio 0.3": row("lmstudio", "qwen/qwen3-8b", V0, window=(12288, LOADED), tools=True, provisional=False),
    "LM Studio 0.3, not loaded": row(
        "lmstudio", "google/gemma-3-4b", V0, window=None, tools=None, vision=True, provisional=True
    ),
    "LM Studio 0.3, unknown": row("lmstudio", "nobody", V0, window=None, provisional=True),
    "LM Studio, its own format of tools": row(
        "lmstudio",
        "m",
        {"/api/v1/models": {"models": [{"key": "m", "capabilities": {"trained_for_tool_use": False}}]}},
        tools=True,
    ),
    **{
        f"Ollama, loaded, as {name}": row(
            "ollama",
            name,
            ollama("show_llama", loaded=True),
            window=(8192, LOADED),
            trained_window=131072,
            tools=True,
            vision=False,
            tokenizer="llama-bpe",
            continuation=TRAILING,
            provisional=False,
        )
        for name in ("llama3.1", "llama3.1:latest", "Llama3.1")
    },
    "Ollama, another tag": row("ollama", "llama3.1:70b", ollama("show_llama", loaded=True), provisional=True),
    "Ollama, not loaded": row("ollama", "llama3.1", ollama("show_llama"), window=(16384, CONFIGURED), provisional=True),
    "Ollama, more than it was trained for": row(
        "ollama",
        "gemma3",
        ollama("show_gemma", parameters="num_ctx 999999"),
        window=(2048, CONFIGURED),
        vision=True,
        tokenizer="gemma3",
    ),
    "Ollama, no parameters": row("ollama", "gemma3", ollama("show_gemma", parameters=""), window=None),
    "Ollama, cloud": row(
        "ollama", "gpt-oss:120b-cloud", ollama("show_cloud"), window=(131072, LISTED), continuation=QUOTE, provisional=False
    ),
    "Ollama, an architecture under another name": row(
        "ollama",
        "m",
        ollama("show_llama", model_info={"general.architecture": "x", "y.context_length": 8192, "z.context_length": 1024}),
        trained_window=1024,
    ),
    **{
        f"Ollama, {modelfile!r}": row("ollama", "m", ollama("show_llama", modelfile=modelfile), continuation=way)
        for modelfile, way in (
            ("FROM x\nRENDERER qwen3-coder\nPARSER qwen3-coder\n", TRAILING),
            ("FROM x\nRENDERER qwen3-vl-thinking\n", TRAILING), ('FROM x\nRENDERER "deepseek3.1"\n', QUOTE),
            ("FROM x\nTEMPLATE {{ .Prompt }}{{ .Response }}\n", TRAILING), (None, TRAILING),
        )
    },
    **{
        f"vLLM, {name}": row(
            "vllm",
            name,
            {LIST: VLLM["models"]},
            window=(32768, LOADED),
            tokenizer="Qwen/Qwen2.5-7B-Instruct",
            tools=None,
            continuation=FLAGS,
            provisional=False,
        )
        for name in ("qwen", "qwen-sql")
    },
    "vLLM, unknown": row("vllm", "nobody", {LIST: VLLM["models"]}, window=None),
    "OpenRouter, the largest of those in service": row(
        "openrouter",
        CODER,
        {**CATALOGUE, **SERVING},
        window=(262144, LISTED),
        max_output=65536,
        tools=True,
        vision=False,
        tokenizer="Qwen3",
        provisional=False,
    ),
    "OpenRouter, the catalogue alone: the top provider, not what is advertised": row(
        "openrouter", CODER, CATALOGUE, window=(262000, LISTED), providers=None
    ),
    "OpenRouter, none in service": row(
        "openrouter", "a/b", endpoints({"provider_name": "x", "context_length": 4096, "status": -2}), window=(4096, LISTED)
    ),
    "OpenRouter, a single entry": row(
        "openrouter", CODER, {f"/v1/model/{CODER}": {"data": ROUTER["models"]["data"][0]}}, window=(262000, LISTED)
    ),
    "OpenRouter, a routing variant": row(
        "openrouter", "openai/gpt-4o-mini:nitro", CATALOGUE, window=(128000, LISTED), tools=False, max_output=None
    ),
    **{
        f"OpenRouter, {model}": row("openrouter", model, {}, continuation=way)
        for model, way in (
            ("qwen/qwen3-coder", TRAILING), ("anthropic/claude-3.5-sonnet", TRAILING), ("anthropic/claude-sonnet-4", TRAILING),
            ("anthropic/claude-opus-4.5:beta", TRAILING), ("anthropic/claude-opus-4.6", QUOTE),
            ("anthropic/claude-sonnet-5", QUOTE), ("~anthropic/claude-sonnet-latest", QUOTE), ("openai/gpt-4o-mini", QUOTE),
            ("deepseek/deepseek-r1", QUOTE), ("mistralai/mistral-large", QUOTE),
        )
    },
}  # fmt: skip


def known(profile: ModelProfile, name: str) -> Any:
    fact = getattr(profile, name)
    if not isinstance(fact, Fact):
        return fact
    return (fact.value, fact.trust) if name == "window" else fact.value


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_holds_what_the_server_tells(name: str) -> None:
    kind, model, replies, expected = PROFILES[name]
    otherwise = UNKNOWN_200 if kind == "lmstudio" else Reply(404, {"error": {"message": "not found"}})
    profile, _ = play(backend_of(kind).profile(model), replies, otherwise=otherwise)
    assert {field: known(profile, field) for field in expected} == expected


LISTS: dict[str, tuple[Replies, list[tuple[str, int | None, bool]]]] = {
    "generic": (generic(context_length=8192), [("m", 8192, False)]),
    "llamacpp": ({LIST: LLAMACPP["router_models"]}, [("qwen/qwen3:8b", 8192, False), ("small", None, True), ("bare", None, True)]),
    "llamaswap": ({LIST: SWAP["models"]}, [("qwen3-8b", 16384, True), ("author/walk", None, False), ("told", 8192, False)]),
    "lmstudio": (V1, [("qwen/qwen3-8b", 8192, False), ("qwen/qwen3-8b:2", 8192, False), ("google/gemma-3-4b", None, True)]),
    "ollama": (
        {LIST: OLLAMA["openai"], "/api/tags": OLLAMA["tags"], "/api/ps": OLLAMA["ps"]},
        [("llama3.1:latest", 8192, False), ("qwen3:8b", None, True), ("gpt-oss:120b-cloud", 131072, False)],
    ),
    "vllm": ({LIST: VLLM["models"]}, [("qwen", 32768, False), ("qwen-sql", 32768, False)]),
    "openrouter": (CATALOGUE, [(CODER, 262000, False), ("openai/gpt-4o-mini", 128000, False)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTS)
def test_models_are_listed_as_they_came_with_what_the_list_tells(kind: str) -> None:
    replies, expected = LISTS[kind]
    listed, _ = play(backend_of(kind).models(), replies)
    assert [one.raw for one in listed] == replies[LIST]["data"]
    told = [(one.id, one.profile.window.value if one.profile.window else None, one.profile.provisional) for one in listed]
    assert told == expected


# -- what is asked for it


@pytest.mark.parametrize(
    ("kind", "model", "replies", "expected"),
    [
        ("llamacpp", "a/b:c", {}, ["/props?model=a%2Fb%3Ac&autoload=false", LIST]),
        ("llamaswap", "author/walk", swapped("x"), [LIST, "/running"]),
        ("llamaswap", "team", {LIST: SWAP["models"]}, [LIST]),
        ("lmstudio", "qwen/qwen3-8b", V1, ["/api/v1/models"]),
        ("ollama", "x", {}, ["/api/ps", "/api/show"]),
        ("vllm", "qwen", {LIST: VLLM["models"]}, [LIST]),
        *(("openrouter", id_, CATALOGUE, [LIST]) for id_ in ("../../credits", "a/../key", "a/b?x=1", "a/b/c", "auto", "ä/b")),
    ],
)
def test_a_profile_costs_few_requests_and_loads_nothing(kind: str, model: str, replies: Replies, expected: list[str]) -> None:
    assert paths(play(backend_of(kind).profile(model), replies)[1]) == expected


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("llamacpp", {}, Probe("GET", "/props?model=team", loads=True)),
        ("llamaswap", {}, Probe("GET", "/upstream/qwen3-8b/health", loads=True)),
        ("ollama", {"options": {"num_ctx": 1}}, Probe("POST", "/api/chat", {"model": "team", "options": {"num_ctx": 1}}, True)),
    ],
)
def test_a_model_is_loaded_as_the_request_would_load_it(kind: str, body: dict[str, Any], expected: Probe) -> None:
    assert play(backend_of(kind).load("team", body), {LIST: SWAP["models"]})[1][-1] == expected


@pytest.mark.parametrize("body", [{}, {"ttl": 300}])
def test_lm_studio_loads_a_model_just_in_time_for_as_long_as_the_client_chose(body: dict[str, int]) -> None:
    _, (probe,) = play(backend_of("lmstudio").load("m", body), {})
    assert (probe.path, probe.json["max_tokens"], probe.loads) == ("/v1/chat/completions", 1, True)
    assert probe.json.get("ttl") == body.get("ttl")


BODY = {"model": "walk", "messages": [{"role": "user", "content": "hi"}], "tools": []}
COUNTING = "/v1/chat/completions/input_tokens?autoload=false"


@pytest.mark.parametrize(
    ("kind", "replies", "expected", "probe"),
    [
        ("llamacpp", {**props(), COUNTING: LLAMACPP["input_tokens"]}, 15, Probe("POST", COUNTING, BODY | {"stream": True})),
        ("llamacpp", props(), None, Probe("POST", COUNTING, BODY | {"stream": True})),
        ("llamacpp", props(is_sleeping=True), None, Probe("GET", "/props?model=walk&autoload=false")),
        ("vllm", {"/tokenize": VLLM["tokenize"]}, 27, Probe("POST", "/tokenize", BODY)),
        *((kind, {}, None, None) for kind in ("generic", "ollama", "lmstudio", "openrouter")),
    ],
)
def test_prompts_are_counted_where_that_is_free(kind: str, replies: Replies, expected: int | None, probe: Probe | None) -> None:
    counted, asked = play(backend_of(kind).count(BODY | {"stream": True}), replies)
    assert counted == expected
    assert (asked[-1] if asked else None) == probe


@pytest.mark.parametrize(
    ("kind", "model", "replies", "expected"),
    [
        ("llamacpp", "a/b", {"/slots?model=a%2Fb&autoload=false": [{"is_processing": False}, {"is_processing": True}]}, True),
        ("llamacpp", "a/b", {"/slots?model=a%2Fb&autoload=false": [{"is_processing": False}]}, False),
        ("llamacpp", "a/b", {"/slots?model=a%2Fb&autoload=false": {"error": {"code": 501}}}, False),
        ("llamaswap", "author/walk", {"/running": SWAP["running"]}, False),
        ("llamaswap", "told", {"/running": SWAP["running"]}, True),
        ("llamaswap", "told", {}, False),
        ("generic", "m", {}, False),
    ],
)
def test_nothing_is_done_ahead_on_a_busy_backend_or_at_the_cost_of_another_model(
    kind: str, model: str, replies: Replies, expected: bool
) -> None:
    assert play(backend_of(kind).busy(model), replies)[0] is expected


# -- OpenRouter's providers


def test_some_providers_stop_when_a_stream_is_broken_off() -> None:
    assert all(map(cancels, ["OpenAI", "DeepInfra", "deepinfra/fp8", "xAI", "X-AI", "Octo AI", "SF Compute", "chutes"]))
    others = ["Groq", "Google AI Studio", "AWS Bedrock", "Mistral", "Venice", "", "/", "OpenAI Compatible"]
    assert not any(map(cancels, others))


@pytest.mark.parametrize(
    ("preferences", "stops"),
    [
        (None, False),
        ({"only": ["deepinfra/fp8"]}, True),
        ({"only": ["deepinfra/turbo"]}, False),
        ({"only": ["groq", "mistral"]}, False),
        ({"only": ["groq", "deepinfra"]}, False),
        ({"ignore": ["Groq"]}, True),
        ({"ignore": ["DeepInfra", "OpenAI", "Groq"]}, False),
        ({"order": ["DeepInfra"]}, False),
        ({"order": ["DeepInfra"], "allow_fallbacks": False}, True),
        ({"order": ["groq", "openai"], "only": ["openai"], "allow_fallbacks": False}, True),
        ({"only": "groq", "order": [7, None]}, False),
        ("groq", False),
    ],
)
def test_a_stream_stops_where_every_provider_that_the_request_allows_does(preferences: object, stops: bool) -> None:
    names = [("DeepInfra", "deepinfra/fp8"), ("OpenAI", "openai"), ("Groq", "groq"), ("OpenAI", "openai")]
    serving = [{"provider_name": name, "tag": tag, "context_length": 8192} for name, tag in names]
    down = {"provider_name": "Down", "context_length": 8192, "status": -2}
    backend = backend_of("openrouter")
    profile, _ = play(backend.profile("a/b"), endpoints(*serving, down))
    assert profile.providers is not None
    assert [each.name for each in profile.providers.value] == ["DeepInfra", "OpenAI", "Groq"]
    assert backend.stops_on_disconnect({"provider": preferences}, profile) is stops


# -- replies of unknown shape


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((4096, 4096), (4096.0, 4096), ("4096", 4096), (10**9, 10**9)),
        *((value, None) for value in (0, -1, True, 0.5, float("nan"), float("inf"), 1e30, 10**9 + 1)),
        *((value, None) for value in ("", "4k", "9" * 5000, None, [4096])),
    ],
)
def test_tokens_are_positive_and_finite(value: object, expected: int | None) -> None:
    assert fields.tokens(value) == expected


def test_what_has_another_shape_is_nothing() -> None:
    assert dig({"a": {"b": 1}}, "a", "b") == 1
    assert dig({"a": [1]}, "a", "b") is dig(None, "a") is None
    assert (fields.mapping([]), fields.objects([1, {"a": 1}, None])) == ({}, [{"a": 1}])
    assert (fields.nonblank("  "), fields.switch(1), fields.contains(None, "tools")) == (None, None, None)
    assert [fields.contains(value, "tools") for value in ([], [{}, "tools"])] == [False, True]
    assert fields.fact(None, "nobody", Trust.LISTED) is None
    assert fields.openai_models({"data": [{"id": "a"}, {"id": ""}, {"id": 1}, "b"]}) == [{"id": "a"}]
    assert fields.openai_models({"data": {}}) == []
    assert len(fields.objects([{}] * 50_000)) == fields.MOST_OBJECTS


def test_ids_go_before_aliases() -> None:
    entries: list[dict[str, Any]] = [{"id": "a", "aliases": ["b"]}, {"id": "b"}]
    assert fields.entries_by_name(entries) == {"a": entries[0], "b": {"id": "b"}}
    assert fields.entries_by_name(entries[:1])["b"] == entries[0]


def test_a_kind_that_lists_models_like_any_other_is_continued_in_its_own_best_way() -> None:
    class Oven(Backend):
        title, continuations = "The Oven", (FLAGS, QUOTE)

    assert Oven().listed_profile({}, {}).continuation == Fact(FLAGS, "The Oven", Trust.FALLBACK)
