"""The command line: ``drpm --help`` lists what it can do."""

from drpm.cli.commands import app, main

__all__ = ["app", "main"]
