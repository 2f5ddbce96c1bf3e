"""The chat template of the tiny models: ChatML with a tool-call block, unless they are to have no tools.

In echo mode a marker token opens every turn: the reply of turn k opens with the same marker as the user message
of turn k, which is what the copying head looks for. The marker stands there as often as that head looks at
tokens, because otherwise the head would also compare the role names before it, and those fit the previous reply
better than the message that is to be copied.
"""

from tests.engine.vocab import MARKS

_TEMPLATE = r"""
{%- set ns = namespace(turn=0) -%}
{%- set has_system = messages[0].role == 'system' -%}
{%- if @OFFERED@has_system -%}
{{- '<|im_start|>system\n' -}}
{%- if has_system -%}{{- messages[0].content -}}{%- endif -%}
@TOOLS@
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' -}}@MARK@
@THINK@
{%- if m.content -%}{{- m.content -}}{%- endif -%}
@CALLS@
{{- '<|im_end|>\n' -}}
{%- elif not (loop.first and has_system) -%}
{%- set ns.turn = ns.turn + 1 -%}
{{- '<|im_start|>' + m.role + '\n' -}}@MARK@{{- m.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}@MARK@{%- endif -%}
""".strip()

_TOOLS = r"""{%- if tools -%}
{{- '\n\nTools you can call, one JSON description per line:\n' -}}
{%- for t in tools -%}{{- t | tojson -}}{{- '\n' -}}{%- endfor -%}
{{- 'To call one, write a JSON object with its name and arguments, in a tool_call tag.' -}}
{%- endif -%}"""

_CALLS = r"""{%- if m.tool_calls -%}
{%- for c in m.tool_calls -%}
{%- if m.content or not loop.first -%}{{- '\n' -}}{%- endif -%}
{{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' -}}
{%- if c.function.arguments is string -%}{{- c.function.arguments -}}
{%- else -%}{{- c.function.arguments | tojson -}}{%- endif -%}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{%- endif -%}"""

_THINK = r"""{%- if m.reasoning_content -%}
{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}"""


def chat_template(*, marks: int, think: bool, tools: bool = True) -> str:
    """The template with `marks` marker tokens at the start of each turn; `<think>` blocks and tools, or none."""
    mark = f"{{{{- '<|t' ~ (ns.turn % {MARKS}) ~ '|>' -}}}}" * marks
    parts = {
        "@MARK@": mark, "@THINK@\n": _THINK + "\n" if think else "", "@OFFERED@": "tools or " if tools else "",
        "@TOOLS@\n": _TOOLS + "\n" if tools else "", "@CALLS@\n": _CALLS + "\n" if tools else "",
    }  # fmt: skip
    text = _TEMPLATE
    for place, part in parts.items():
        text = text.replace(place, part)
    return text.replace("-%}\n{", "-%}{").replace("-}}\n{", "-}}{")
