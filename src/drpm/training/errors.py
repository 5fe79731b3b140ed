"""What can go wrong around a run, each told in one sentence that a person can act on."""

import errno


class ConfigError(ValueError):
    """A setting that cannot be: its dotted name, what was expected and what came."""


class RunError(RuntimeError):
    """A run that cannot start or go on: the folder or file, and why."""


def reason(error: OSError) -> str:
    """Why the operating system refused, in words that fit after "because"."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    if error.errno == errno.EDQUOT:
        return "the disk quota is used up"
    text = error.strerror or str(error) or type(error).__name__
    return f"of the error '{text}'"
