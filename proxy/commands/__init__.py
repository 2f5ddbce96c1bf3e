"""Commands of `spillway`, each a module with a function `run`, which returns the exit status."""


class CommandError(Exception):
    """What a command is for can't be done; the text says why, and what to do."""
