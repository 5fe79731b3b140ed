"""The command line; ``drpm --help`` lists the commands."""

from drpm.cli.commands import app, main

__all__ = ["app", "main"]
