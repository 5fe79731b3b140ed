"""Imports point one way: relaxation <- distributions <- nn <- applications <- cli."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "drpm"

ROOT = "drpm"  # the public names of the package itself: `from drpm import RandomPartition`

LAWS = {"relaxation", "distributions", ROOT}
TOOLS = {"data", "training", "report", "experiments"}
APPLICATIONS = {"clustering", "factors", "multitask", "supervised"}

# Each part of the package, and the parts it may import besides itself.
ALLOWED: dict[str, set[str]] = {
    "relaxation": set(),
    "distributions": {"relaxation"},
    ROOT: {"relaxation", "distributions", "lazy"},
    "nn": LAWS,
    "studies": LAWS | {"training", "report", "experiments"},
    "data": {"lazy"},
    "training": {ROOT},  # for its version
    "report": {"training"},
    "experiments": {"training", "report"},
    "presets": set(),
    "lazy": set(),
    **{name: LAWS | {"nn", "presets", "lazy", "studies"} | TOOLS for name in APPLICATIONS},
    "cli": LAWS | {"nn", "studies", "presets"} | TOOLS | APPLICATIONS,
    "__main__": {"cli"},
}


def parts(package: Path) -> set[str]:
    """The modules and packages directly under the package."""
    inner = {path.relative_to(package).parts[0] for path in package.glob("*/**/*.py")}
    return inner | {path.stem for path in package.glob("*.py")} - {"__init__"}


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(package: Path) -> list[str]:
    """One sentence for each import that points the wrong way."""
    known = parts(package)
    found = [
        f"'{part}' is a new part of the package: add it to the table in tests/test_imports.py."
        for part in sorted(known - ALLOWED.keys())
    ]
    for path in sorted(package.rglob("*.py")):
        part = path.relative_to(package).with_suffix("").parts[0].replace("__init__", ROOT)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for line, target in imported_modules(tree):
            first, _, rest = target.partition(".")
            where = path.relative_to(package.parent)
            if not first:
                found.append(f"{where}:{line} imports {target}: imports must be absolute.")
            if first != ROOT:
                continue
            name = rest.partition(".")[0]
            imported = name if name in known | ALLOWED.keys() else ROOT
            if imported != part and imported not in ALLOWED.get(part, {imported}):
                found.append(f"{where}:{line} imports {target}: {part} may not know {imported}.")
    return found


def test_imports_point_one_way() -> None:
    assert not violations(PACKAGE), "\n".join(violations(PACKAGE))


def test_the_table_has_no_cycle() -> None:
    order = list(TopologicalSorter(ALLOWED).static_order())
    assert order.index("relaxation") < order.index("distributions") < order.index("nn")
    assert all(order.index("nn") < order.index(name) < order.index("cli") for name in APPLICATIONS)
    assert not any(ALLOWED[tool] & APPLICATIONS for tool in TOOLS)
