"""The page of a finished run with its figures, made from its folder alone.

The figures come from ``metrics.jsonl`` and ``arrays.npz`` (:mod:`drpm.report.figure_data`). The
page also shows these entries of ``result.json``: ``comparison`` (method -> metric -> value),
``method`` (the name of the run's own column), ``names`` (metric -> what to call it), ``tables``
(title -> row -> column -> metric), ``about`` (a sentence on the metrics), ``data`` (a sentence, or
names and values), ``command`` (the command line that repeats the run) and ``stacked`` (the seeds
that were trained together).
"""

from drpm.report.page import write_page

__all__ = ["write_page"]
