"""The documentation site: `make docs` builds it into out/site, without any request to the net."""

import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import drpm

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # pictures.py
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the tutorials, which are small
os.environ["MATPLOTLIBRC"] = str(DOCS / "matplotlibrc")

project = "drpm"
author = "The drpm developers"
copyright = "The drpm developers"
version = release = drpm.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
highlight_language = "text"

# Tutorials are executed by every build, and an error in one fails it.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_output_stderr = "remove"  # progress, and advice of other packages

# Every reference must lead somewhere, except types of other packages and internal ones.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|sklearn|pathlib|collections|typing|nn|scipy)\..*"),
    ("py:class", r"(Tensor|Size|Path|Array|Any|Callable|Mapping|Sequence|Self|optional|Device)"),
    ("py:.*", r"drpm\.(data|distributions|clustering\.fitted)\..*"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the arguments are described in words
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "drpm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # needs a server, and the site also works from files
html_math_renderer = "mathml"


def visit_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(to_mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    math = to_mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="math">{math}</div>\n')
    raise nodes.SkipNode


def to_mathml(formula: str, *, as_block: bool) -> str:
    """MathML, which browsers draw by themselves."""
    return tex2mathml(formula.replace(r"\dots", r"\ldots"), as_block=as_block)


def prepare(app: Sphinx) -> None:
    """Draw the pictures of the method and of the gallery, and write the explorer."""
    import pictures

    from drpm.cli.pages import render_explorer

    pictures.draw_all(DOCS / "drawn")
    static = Path(app.outdir) / "_static"
    static.mkdir(exist_ok=True)
    (static / "explore.html").write_text(render_explorer(), encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("builder-inited", prepare)
