"""Outputs as models write them, and the pieces that each is made of: calls in every form."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from proxy.emulation.forms import Call, CallFault
from proxy.emulation.offer import Offer, offer_of
from proxy.emulation.scanner import CallScanner


@dataclass(frozen=True)
class Malformed:
    """A call that can't be made: its form, and the message for the model."""

    form: str
    message: str


Found: TypeAlias = str | Call | Malformed

WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city"}, "days": {"type": "integer"},
            "unit": {"enum": ["celsius", "fahrenheit"]}, "hourly": {"type": "boolean"},
            "height": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "required": ["city"],
    },
}  # fmt: skip
WRITE = {
    "name": "write_file",
    "description": "Write a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
        "additionalProperties": False,
    },
}
SEARCH = {
    "name": "search",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "filter": {"type": "object"}},
    },
}  # fmt: skip
NOW = {"name": "now", "description": "Tell the time."}
FUNCTIONS: list[dict[str, Any]] = [WEATHER, WRITE, SEARCH, NOW]
BODY: dict[str, Any] = {"tools": [{"type": "function", "function": f} for f in FUNCTIONS]}


def offer(**fields: Any) -> Offer:
    found = offer_of({**BODY, **fields})
    assert found is not None
    return found


@dataclass(frozen=True)
class Output:
    name: str
    text: str
    found: tuple[Found, ...]
    """Text, calls, and calls that can't be made, whose text is not repeated."""
    cut: bool = False


def scanned(chunks: Iterable[str], *, cut: bool = False, of: Offer | None = None, said: str = "") -> tuple[Found, ...]:
    """What a scanner finds behind what was `said` before."""
    scanner, text = CallScanner(of or offer(), said), said
    spans = []
    for chunk in chunks:
        text += chunk
        spans += scanner.feed(chunk)
        assert scanner.decided <= len(text)
    spans += scanner.close(cut=cut)
    found: list[Found] = []
    at = len(said)
    for span in spans:
        found.append(text[at : span.start])
        at = span.end
        wrong = span.found
        found += [Malformed(wrong.form, wrong.message)] if isinstance(wrong, CallFault) else span.calls
    found.append(text[at:])
    joined: list[Found] = []
    for each in (each for each in found if each):
        if joined and isinstance(each, str) and isinstance(joined[-1], str):
            joined[-1] += each
        else:
            joined.append(each)
    return tuple(joined)


def paris(form: str, *, repaired: bool = False, arguments: str = '{"city": "Paris"}') -> Call:
    return Call("get_weather", arguments, form, repaired)


def row(name: str, text: str, *found: Found, cut: bool = False) -> Output:
    return Output(name, text, found, cut)


def broken(name: str, text: str, form: str, reason: str, *, cut: bool = False) -> Output:
    return Output(name, text, (Malformed(form, reason),), cut)


P = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
LISBON = '{"name": "get_weather", "arguments": {"city": "Lisbon"}}'
ARGS = '{"city": "Paris"}'
TAGGED = f"<tool_call>\n{P}\n</tool_call>"
FENCED = f"```json\n{P}\n```"
HARD = r'{"path": "a.md", "content": "# {x} [y] `z`\n```js\nf({\"a\": \"}\"})\n```\n</tool_call> ü 🌧 \\"}'
HARD_CALL = f'{{"name": "write_file", "arguments": {HARD}}}'


DAYS = '{"city": "Paris", "days": 3}'


def invoked(prefix: str, wrapper: str, how: str = "") -> str:
    """Two calls with names in quotes, as three families of models write them."""
    p = prefix
    parameters = "".join(
        f'<{p}parameter name="{name}"{how}>{value}</{p}parameter>\n' for name, value in (("city", "Paris"), ("days", 3))
    )
    first = f'<{p}invoke name="get_weather">\n{parameters}</{p}invoke>'
    return f'<{wrapper}>\n{first}\n<{p}invoke name="now">\n</{p}invoke>\n</{wrapper}>'


def hard(form: str) -> Call:
    return Call("write_file", HARD, form)


CLEAN = [
    row("tagged", TAGGED, paris("tool_call")),
    row("tagged on one line", f"<tool_call>{P}</tool_call>", paris("tool_call")),
    row("function_call tag", f"<function_call>\n{P}\n</function_call>", paris("function_call")),
    row("llama function tag", f"<function=get_weather>{ARGS}</function>", paris("function")),
    row("llama function tag without its end", f"<function=get_weather>{ARGS}", paris("function")),
    row("fence json", FENCED, paris("fenced")),
    row("fence JSON in capitals", f"```JSON\n{P}\n```", paris("fenced")),
    row("fence tool_call", f"```tool_call\n{P}\n```", paris("fenced")),
    row("fence tool", f"```tool\n{P}\n```\n", paris("fenced")),
    row("fence without a language", f"```\n{P}\n```", paris("fenced")),
    row("fence on one line", f"```json {P} ```", paris("fenced")),
    row("fence of four", f"````json\n{P}\n````", paris("fenced")),
    row("fence left open", f"```json\n{P}\n", paris("fenced")),
    row("fence with Windows line ends", f"```json\r\n{P}\r\n```", paris("fenced")),
    row("tags in a fence", f"```\n{TAGGED}\n{TAGGED}\n```\n", paris("fenced"), paris("fenced")),
    row("tags in a fence of xml", f"Yes.\n```xml\n{TAGGED}\n```", "Yes.\n", paris("fenced")),
    row("tags in a fence left open", f"```\n{TAGGED}", paris("fenced")),
    row("fence in a tag", f"<tool_call>\n{FENCED}\n</tool_call>\nB", paris("tool_call"), "B"),
    row("closing tag alone", f"A\n{P}\n</tool_call>", "A\n", paris("bare")),
    row("closing tag cut off", f"{P}\n</tool", paris("bare")),
    row("another tag behind", f"{P}\n</b>", paris("bare"), "</b>"),
    row("bare", P, paris("bare")),
    row("bare over lines", P.replace("{", "{\n  ").replace("}", "\n}"), paris("bare")),
    row("bare array", f"[{P}]", paris("bare")),
    row("mistral array", f"[TOOL_CALLS][{P}]", paris("mistral")),
    row("mistral array with a space", f"[TOOL_CALLS] [{P}]", paris("mistral")),
    row("mistral name and args", f"[TOOL_CALLS]get_weather[ARGS]{ARGS}", paris("mistral")),
    row("mistral name with id", f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{ARGS}", paris("mistral")),
    row("mistral name alone", f"[TOOL_CALLS]get_weather{ARGS}", paris("mistral")),
    row(
        "qwen3-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        paris("tool_call", arguments='{"city": "Paris", "days": 3}'),
    ),
    row(
        "qwen3-coder without the outer tag",
        "<function=write_file>\n<parameter=path>\na.html\n</parameter>\n<parameter=content>\n<b>\n1 < 2\n</b>\n\n</parameter>\n</function>",
        Call("write_file", r'{"path": "a.html", "content": "<b>\n1 < 2\n</b>\n"}', "function"),
    ),
    row("qwen3-coder without parameters", "<tool_call>\n<function=now>\n</function>\n</tool_call>", Call("now", "{}", "tool_call")),
    row(
        "qwen3-coder with structures",
        '<function=search><parameter=tags>["a", "b"]</parameter><parameter=filter>{"x": True}</parameter></function>',
        Call("search", '{"tags": ["a", "b"], "filter": {"x": true}}', "function"),
    ),
    # forms of one family of models each
    row(
        "kimi k2",
        f"I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{ARGS}<|tool_call_end|>"
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "I look.", paris("kimi"), Call("now", "{}", "kimi"),
    ),
    row(
        "kimi k2 over lines",
        f"<|tool_calls_section_begin|>\n<|tool_call_begin|>\nget_weather:0 <|tool_call_argument_begin|>\n{ARGS}\n<|tool_call_end|>\n<|tool_calls_section_end|>",
        paris("kimi"),
    ),
    row(
        "deepseek v3",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGS}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>B.",
        paris("deepseek"), Call("now", "{}", "deepseek"), "B.",
    ),
    row("deepseek v3.1", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", paris("deepseek")),
    row("deepseek v3.2", invoked("｜DSML｜", "｜DSML｜function_calls", ' string="true"'), paris("invoke", arguments=DAYS), Call("now", "{}", "invoke")),
    row("minimax m2", invoked("", "minimax:tool_call"), paris("invoke", arguments=DAYS), Call("now", "{}", "invoke")),
    row("minimax m1", f"<tool_calls>\n{P}\n{P}\n</tool_calls>", paris("tool_calls"), paris("tool_calls")),
    row("claude", f"A.\n\n{invoked('', 'function_calls')}\nB.", "A.\n\n", paris("invoke", arguments=DAYS), Call("now", "{}", "invoke"), "B."),
    row("claude with a prefix", invoked("antml:", "antml:function_calls"), paris("invoke", arguments=DAYS), Call("now", "{}", "invoke")),
    row(
        "glm 4.5",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>now\n</tool_call>",
        paris("glm", arguments=DAYS), Call("now", "{}", "glm"),
    ),
    row("glm 4.7", '<tool_call>search<arg_key>tags</arg_key><arg_value>["a"]</arg_value></tool_call>B.', Call("search", '{"tags": ["a"]}', "glm"), "B."),
    row("gemma 3", '```tool_code\nget_weather(city="Paris")\n```', paris("tool_code")),
    row(
        "gemma 3, printed", "I look.\n```tool_code\nprint(get_weather(city='Paris'))\nprint(default_api.now())\n```\nB.",
        "I look.\n", paris("tool_code"), Call("now", "{}", "tool_code"), "B.",
    ),
    row("gpt-oss", f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGS}<|call|>", paris("harmony")),
    row("gpt-oss, recipient first", f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{ARGS}<|call|>", paris("harmony")),
    row("gpt-oss without its end", f"<|start|>assistant<|channel|>commentary to=functions.get_weather<|message|>{ARGS}", paris("harmony")),
    row("granite", f"<|tool_call|>[{P}]", paris("tool_call_token")),
    row("phi 4 mini", f"<|tool_call|>[{P}]<|/tool_call|>", paris("tool_call_token")),
    row("lfm 2 alone", '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>', paris("tool_call_token")),
    row(
        "lfm 2", '<|tool_call_start|>[get_weather(city="Paris"), now()]<|tool_call_end|>B.',
        paris("tool_call_token"), Call("now", "{}", "tool_call_token"), "B.",
    ),
    # Python
    row("python list", '[get_weather(city="Paris")]', paris("pythonic", arguments='{"city": "Paris"}')),
    row(
        "python list of several",
        "[get_weather(city='Paris', days=3, hourly=True, height=-1.5),\n now( ) , search(tags=['a', \"b\"], filter={'x': None, 1: (2,)},)]\n",
        Call("get_weather", '{"city": "Paris", "days": 3, "hourly": true, "height": -1.5}', "pythonic"),
        Call("now", "{}", "pythonic"),
        Call("search", '{"tags": ["a", "b"], "filter": {"x": null, "1": [2]}}', "pythonic"),
    ),
    row("python with JSON's words", "[get_weather(city='P', hourly=true)]", Call("get_weather", '{"city": "P", "hourly": true}', "pythonic")),
    row(
        "python with hard text",
        """[write_file(path="a", content="f(')}]\\n\\"", ) ]""",
        Call("write_file", '{"path": "a", "content": "f(\')}]\\n\\""}', "pythonic"),
    ),
    row("python with escapes that are none", r"[search(query='\d+\.')]", Call("search", r'{"query": "\\d+\\."}', "pythonic")),
    row("python behind prose", "I look.\n\n[now()]", "I look.\n\n", Call("now", "{}", "pythonic")),
    row("python list left open", "[now()", Call("now", "{}", "pythonic")),
    row("python tag and JSON", f"<|python_tag|>{P}", paris("python_tag")),
    row("python tag and JSON in a row", f"<|python_tag|>{P}; {P}", paris("python_tag"), paris("python_tag")),
    row("python tag and a list", "<|python_tag|>[now(), now()]B.", Call("now", "{}", "python_tag"), Call("now", "{}", "python_tag"), "B."),
    row("python tag and an array", f"<|python_tag|>[{P}]", paris("python_tag")),
    row("python tag and a call", '<|python_tag|>search.call(query="x")', Call("search", '{"query": "x"}', "python_tag")),
    row("python start and end", "<|python_start|>[now()]<|python_end|>", Call("now", "{}", "python_tag")),
    # shapes
    row("tool and args", f'{{"tool": "get_weather", "args": {ARGS}}}', paris("bare")),
    row("name and parameters", f'{{"name": "get_weather", "parameters": {ARGS}}}', paris("bare")),
    row("name and input", f'{{"name": "get_weather", "input": {ARGS}}}', paris("bare")),
    row("name and params", f'{{"params": {ARGS}, "name": "get_weather"}}', paris("bare")),
    row("other keys before", f'{{"name": "get_weather", "why": "it rains", "input": {ARGS}}}', paris("bare")),
    row("labels alone", '{"type": "function", "name": "now", "id": "c1"}', Call("now", "{}", "bare")),
    row("a list of names", '[{"name": "now"}, {"id": 2, "name": "now"}]', Call("now", "{}", "bare"), Call("now", "{}", "bare")),
    row("behind a structure", f'{{"a": [1, {{}}]}}\n{P}', '{"a": [1, {}]}\n', paris("bare")),
    row("tag in a structure that breaks off", f'{{"a": 1,\n{TAGGED}', '{"a": 1,\n', paris("tool_call")),
    row("behind a quote that is forgotten", f'{{"a": "b}}\n{P}', '{"a": "b}\n', paris("bare")),
    row("behind brackets that are none", f"[x y\n{P}", "[x y\n", paris("bare")),
    row("function inside", f'{{"function": {P}}}', paris("bare")),
    row("OpenAI's own shape", f'{{"type": "function", "function": {P}}}', paris("bare")),
    row("with an id", f'{{"id": "call_1", "type": "function", "function": {P}}}', paris("bare")),
    row("function as the name", f'{{"function": "get_weather", "arguments": {ARGS}}}', paris("bare")),
    row("arguments first", f'{{"arguments": {ARGS}, "name": "get_weather"}}', paris("bare")),
    row("type beside name", f'{{"type": "function", "name": "get_weather", "parameters": {ARGS}}}', paris("bare")),
    row("more keys than wanted", P.replace("}}", '}, "why": "it rains"}'), paris("bare")),
    row(
        "arguments as a string",
        r'{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}',
        paris("bare"),
    ),
    row("no arguments at all", '{"name": "now"}', Call("now", "{}", "bare")),
    row("empty arguments", '{"name": "now", "arguments": {}}', Call("now", "{}", "bare")),
    row("null arguments", '{"name": "now", "arguments": null}', Call("now", "{}", "bare")),
    row("empty string of arguments", '{"name": "now", "arguments": ""}', Call("now", "{}", "bare")),
    row("surplus arguments stay", '{"name": "now", "arguments": {"x": 1}}', Call("now", '{"x": 1}', "bare")),
    # contents that are hard to read
    *(
        row(f"hard content {form}", text, hard(form))
        for form, text in (
            ("tool_call", f"<tool_call>\n{HARD_CALL}\n</tool_call>"),
            ("fenced", f"```json\n{HARD_CALL}\n```"),
            ("bare", HARD_CALL),
            ("mistral", f"[TOOL_CALLS][{HARD_CALL}]"),
            ("function", f"<function=write_file>{HARD}</function>"),
        )
    ),
    row(
        "nested braces",
        '{"name": "search", "arguments": {"filter": {"a": {"b": [{"c": "}{"}, []]}}}}',
        Call("search", '{"filter": {"a": {"b": [{"c": "}{"}, []]}}}', "bare"),
    ),
    row("unicode", P.replace("Paris", "Zürich ☔\u2028"), paris("bare", arguments='{"city": "Zürich ☔\u2028"}')),
    # text around
    row("prose before", f"Let me look that up.\n\n{TAGGED}", "Let me look that up.\n\n", paris("tool_call")),
    row("prose before on the same line", f"Right: {TAGGED}", "Right: ", paris("tool_call")),
    row("prose after", f"{TAGGED}\n\nI wait.", paris("tool_call"), "I wait."),
    row("prose on both sides", f"A.\n\n{TAGGED}\nB.", "A.\n\n", paris("tool_call"), "B."),
    row("prose close by", f"A.{TAGGED}B.", "A.", paris("tool_call"), "B."),
    row("prose close before", f"A.{TAGGED}\nB.", "A.", paris("tool_call"), "\nB."),
    row("prose and fence", f"I call it:\n{FENCED}\n", "I call it:\n", paris("fenced")),
    row("fence behind a colon", f"I call it: {FENCED}", "I call it: ", paris("fenced")),
    row("prose and bare", f"I call it:\n\n{P}\nDone.", "I call it:\n\n", paris("bare"), "Done."),
    row("indented bare", f"Step 1:\n   {P}", "Step 1:\n   ", paris("bare")),
    row("thought before", f"<think>\nhm {P} {TAGGED}\n</think>\n\n{P}", f"<think>\nhm {P} {TAGGED}\n</think>", paris("bare")),
    row("directly behind a thought", f"<think>x</think>{P}", "<think>x</think>", paris("bare")),
    row("white space around", f"\n\n {TAGGED} \n\n", paris("tool_call")),
    # several
    row("two tags", f"{TAGGED}\n{TAGGED}", paris("tool_call"), paris("tool_call")),
    row("two in one tag", f"<tool_call>\n{P}\n{P}\n</tool_call>", paris("tool_call"), paris("tool_call")),
    row("array in a fence", f"```json\n[{P}, {P}]\n```", paris("fenced"), paris("fenced")),
    row("lines in a fence", f"```json\n{P}\n{P}\n```", paris("fenced"), paris("fenced")),
    row("lines", f"{P}\n{P}", paris("bare"), paris("bare")),
    row("semicolons", f"{P}; {P}", paris("bare"), paris("bare")),
    row("mistral in a row", f"[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]get_weather[ARGS]{ARGS}", Call("now", "{}", "mistral"), paris("mistral")),
    row("forms mixed", f"{FENCED}\n{TAGGED}\nthen\n{P}", paris("fenced"), paris("tool_call"), "then\n", paris("bare")),
    row("tag behind one that holds nothing", f"<tool_call>\n{TAGGED}", "<tool_call>\n", paris("tool_call")),
    row("tag not closed before the next", f"<tool_call>{P}<tool_call>{P}</tool_call>", paris("tool_call"), paris("tool_call")),
]  # fmt: skip
