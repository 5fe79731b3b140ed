"""The one error of this package."""


class DataError(ValueError):
    """Data that cannot be used: one sentence that names the file, what was expected, what came."""
