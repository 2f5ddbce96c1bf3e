"""Commands of `spillway`, each a module with a function `run`, which returns the exit status."""


class CommandError(Exception):
    """What a command is for can't be done; the text says why, and what to do."""


def say(text: str) -> None:
    """Print a text for the person at the terminal, at once."""
    print(text, flush=True)  # noqa: T201 - a command line tool prints
