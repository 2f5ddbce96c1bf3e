"""How each agent is given a task: unchanged, in a home of its own, started by `spillway launch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MODEL = "local-model"
TASK = "Count with the shell until you are told that it is enough, then say that you are finished."

PROGRAMS: Mapping[str, Sequence[str]] = {
    "claude": ("-p", TASK, "--dangerously-skip-permissions"),
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
    "opencode": ("run", TASK),
    "qwen": ("--yolo", "-p", TASK),
}
"""Their own arguments, which have them do it and allow them all that it takes."""
ALLOWED: Mapping[str, str] = {
    "IS_SANDBOX": "1",  # Claude Code skips permissions as root only where it is told so
    "OPENCODE_PERMISSION": '{"bash": "allow"}',
    "DISABLE_AUTOUPDATER": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
}
"""The same in the environment."""
