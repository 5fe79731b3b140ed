"""Reports, made from finished runs alone: the page of a run, and the results document."""

from drpm.report.page import write_page

__all__ = ["write_page"]
