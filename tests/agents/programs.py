"""How each agent is given a task: unchanged, in a home of its own, started by `spillway launch`."""

from collections.abc import Mapping, Sequence

MODEL = "local-model"
TASK = """Count with the shell, one command after the other, until you are told that it is enough.

- Read what each command prints before you run the next one.
- Write no files, and leave those that are there as they are.
- When it is enough, say that you are finished, and close with the words 'amber heron 4471'."""
GUIDES = ("AGENTS.md", "CLAUDE.md", "QWEN.md")
"""Files that the programs read and put in front of the task or behind it."""
GUIDE = "# About this folder\n\n" + "".join(
    f"- Rule {number}: what is counted in part {number} is looked at before part {number + 1} is begun.\n"
    for number in range(1, 56)
)
"""Some 4 kB, as such files often have."""

PROGRAMS: Mapping[str, Sequence[str]] = {
    "claude": ("-p", TASK, "--dangerously-skip-permissions"),
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
    "opencode": ("run", TASK),
    "qwen": ("--yolo", "-p", TASK),
}
"""Their own arguments, which have them do it and allow them all that it takes."""
QUESTION = "What did the first command say the code of harbour is, and which words were you to close with?"
AFTERWARDS: Mapping[str, Sequence[Sequence[str]]] = {
    "claude": (("-c", "-p", "/compact"), ("-c", "-p", QUESTION)),
    "qwen": (("--continue", "-p", "/compress"), ("--continue", "-p", QUESTION)),
}
"""How the session is then compacted by the program itself, and asked for what was said at its beginning; of those that do so by a command."""
ALLOWED: Mapping[str, str] = {
    "IS_SANDBOX": "1",  # Claude Code skips permissions as root only where it is told so
    "OPENCODE_PERMISSION": '{"bash": "allow"}',
    "DISABLE_AUTOUPDATER": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
}
"""The same in the environment."""
