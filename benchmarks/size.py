"""Measure the size of the project: lines, modules, import closures, and import cycles between folders.

Run: python benchmarks/size.py [CHECKOUT]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOMS = ("programs", "metrics", "optimize")
CLOSURES = ("querywright.programs", "querywright.cli.ask")

Graph = Mapping[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """Return all modules in the package, keyed by name, including those in folders at the root of the checkout."""
    found = {}
    for base, prefix in ((root / "src", ""), (root, "querywright.")):
        folders = [base / "querywright"] if not prefix else [root / room for room in ROOMS]
        for folder in folders:
            for path in sorted(folder.rglob("*.py")):
                name = prefix + ".".join(path.relative_to(base).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


def imports_of(tree: ast.Module, modules: Iterable[str], *, eager: bool) -> Iterator[str]:
    """Yield the project's modules that a module imports; with ``eager``, only those imported at import time."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if eager and (is_typing or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            skipped |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def reached(graph: Graph, start: str) -> set[str]:
    """Return all modules that are imported with a module, including itself and its parent packages."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        parents = (name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1))
        todo += [*graph.get(name, ()), *(parent for parent in parents if parent in graph)]
    return seen


def main(root: Path) -> None:
    """Print the figures for a checkout."""
    modules = modules_of(root)
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    graphs: dict[bool, dict[str, set[str]]] = {
        eager: {name: {one for one in imports_of(tree, modules, eager=eager) if one in modules and one != name}
                for name, tree in trees.items()}
        for eager in (False, True)
    }  # fmt: skip
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "tests").rglob("*.py"))
    print(f"source: {sum(lines.values()):,} lines, {len(modules)} modules, tests: {tests:,} lines")
    for start in CLOSURES:
        now, later = (len(reached(graphs[eager], start)) for eager in (True, False))
        print(f"modules imported by {start}: {now} at import, {later} including imports inside functions")
    folder = {name: name if modules[name].name == "__init__.py" else name.rpartition(".")[0] for name in modules}
    pairs = {(folder[name], folder[one]) for name, imported in graphs[False].items() for one in imported}
    circles = sorted((a, b) for a, b in pairs if a < b and (b, a) in pairs and "querywright" not in (a, b))
    print("import cycles between folders:", ", ".join(f"{a} <-> {b}" for a, b in circles) or "none")
    for room in sorted(set(folder.values())):
        inside = [name for name in modules if folder[name] == room]
        print(f"{sum(lines[name] for name in inside):7,} lines {len(inside):4} modules  {room}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
