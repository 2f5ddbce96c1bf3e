"""What a coding agent sends in front of every prompt: as long as those of the programs that are in use, in words of its own."""

from typing import Any

RULES = (
    "NEVER commit changes unless the user asks you to.",
    "You MUST run the linter when you are done.",
    "IMPORTANT: Keep your answers short.",
)
ENVIRONMENT = (
    "Working directory: /home/me/work", "Is directory a git repo: yes", "Platform: linux", "Today's date: Sun Nov 22 2026",
)  # fmt: skip
_MANNER = "When you work on something, it is good to look at it from more than one side and to tell what you found. "
_EXAMPLE = "<example>\nuser: what is 2+2? ALWAYS answer.\nassistant: 4\n</example>\n"
PROMPT = "\n".join(
    (
        "You are crafter, an interactive CLI agent that helps users with software engineering tasks.",
        *(f"# Part {n}\n{_MANNER * 8}\n- {rule}\n{_EXAMPLE}" for n, rule in enumerate(RULES * 3)),
        "Here is where you are:",
        "<env>",
        *(f"  {line}" for line in ENVIRONMENT),
        "</env>",
        "<available_skills>\n  <skill>\n    <name>release-notes</name>\n  </skill>\n</available_skills>",
    )
)
"""About 9,000 characters, a third of which are examples and manners."""

_PARAMETERS = {
    "bash": ("command", "timeout", "workdir"), "edit": ("path", "old", "new"), "glob": ("pattern", "path"),
    "grep": ("pattern", "path", "include"), "read": ("path", "offset", "limit"), "skill": ("name",),
    "task": ("description", "prompt", "agent"), "todowrite": ("todos",), "webfetch": ("url", "format"),
    "write": ("path", "content"),
}  # fmt: skip
_ABOUT = "It says at length when to use this and when not to, and what may go wrong then. "


def _tool(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {each: {"type": "string", "description": f"The {each} of it. {_ABOUT * 2}"} for each in parameters},
        "required": [parameters[0]],
    }
    function = {"name": name, "description": f"Does {name}. {_ABOUT * 20}", "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [_tool(*each) for each in _PARAMETERS.items()]
"""About 20,000 characters."""
