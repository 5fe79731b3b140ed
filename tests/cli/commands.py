"""Commands, called in this process."""

from typer.testing import CliRunner, Result

from drpm.cli import app

# A clustering that takes a second.
SMALL_CLUSTERING = [
    *("--device=cpu", "--set=network.encoder=32,16", "--set=network.decoder=16,32"),
    *("--set=network.latent=4", "--set=partitions=4", "--set=training.epochs=2"),
    *("--set=training.batch_size=256", "--set=pretraining.training.epochs=2"),
    "--set=pretraining.training.batch_size=256",
]


def drpm(*arguments: object, code: int = 0) -> Result:
    """Call ``drpm``, which must end with this exit code and never with a traceback."""
    # Wide enough that no message is wrapped in the middle of what a test looks for.
    environment = {"COLUMNS": "300", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [*map(str, arguments)], env=environment)
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    assert result.exit_code == code, result.output
    return result


def refusal(*arguments: object) -> str:
    """The one sentence of a command that is refused."""
    (line,) = drpm(*arguments, code=1).stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
