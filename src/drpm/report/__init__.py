"""Pictures and a page of a finished run; they are made from its folder and nothing else.

A run's folder is read as :mod:`drpm.training.runs` writes it, with two additions, both optional.
``arrays.npz`` holds what there is to draw: of clusterings under the names of
:class:`drpm.report.arrays.Arrays`, of anything else in the form of :mod:`drpm.report.exhibits`.
``result.json`` may have further entries for the page: ``comparison`` (method -> metric -> value),
``method`` (what the run's own column is called where it is not one of these), ``names`` (metric ->
what it is called), ``about`` (what the metrics are of, as a sentence), ``data`` (a description of
the data: a sentence, or names and values), ``command`` (the command line that repeats the run) and
``stacked`` (the seeds that were trained together).
"""

from drpm.report.figures import write_figures
from drpm.report.page import write_page

__all__ = ["write_figures", "write_page"]
