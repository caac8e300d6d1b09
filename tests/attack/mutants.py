"""Changes one thing in a module that decides, and asks whether a test notices: do the tests really test?

Run: python tests/attack/mutants.py [HOW_MANY] [MODULE ...]: so many mutants, drawn evenly, in forks of a warm process;
others with another number in SEED.
Ends with status 1 where fewer than 85 of 100 are noticed.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.machinery
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = {
    **{
        str(path.relative_to(ROOT)): "tests/metrics tests/programs/test_programs.py"
        for path in sorted((ROOT / "metrics").glob("[a-z]*.py"))
    },
    "optimize/study/select.py": "tests/optimize/study/test_select.py",
    "optimize/significance.py": "tests/optimize/test_tables.py tests/optimize/test_compiled.py",
    "programs/selection.py": "tests/programs/test_selection.py tests/test_readme.py",
    "src/querywright/retrieval/fusion.py": "tests/retrieval/test_fusion.py",
    "src/querywright/models/store.py": "tests/models/test_store.py",
}
LEAST, SECONDS = 0.85, 180
"""Share that must be noticed; of a processor, after which a mutant's loop is taken for one that does not end."""
SWAP = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
UNSEEN = {"decorator_list", "annotation", "returns", "exc", "cause", "type_params", "bases"}
"""Parts of a node that say how a thing is told or typed, not what is decided."""


SETTING = ast.Constant | ast.Tuple | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.expr_context


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)


def is_setting(node: ast.AST) -> bool:
    return all(isinstance(one, SETTING) for one in ast.walk(node))


def places(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in which one thing can be changed, always in the same order."""
    for name, value in ast.iter_fields(node):
        if name in UNSEEN or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func).startswith("_logger."):
                continue
            if isinstance(node, ast.Module) and isinstance(child, ast.Assign) and is_setting(child.value):
                continue  # such as how long is waited
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue  # an assertion about what is zipped
            if isinstance(child, ast.AST):
                yield from places(child)
    swaps = type(getattr(node, "op", None)) in SWAP or (isinstance(node, ast.Compare) and type(node.ops[0]) in SWAP)
    negates = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    gives = isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None"
    if is_number(node) or swaps or negates or gives:
        yield node


def change(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAP[type(node.ops[0])]()
    elif isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    elif isinstance(node, ast.UnaryOp):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif hasattr(node, "op"):
        node.op = SWAP[type(node.op)]()


def tests_of(module: str) -> list[str]:
    """The tests of its room, those that are named like it first."""
    found = [path for place in TESTS[module].split() for path in sorted((ROOT / place).rglob("test_*.py"))]
    found += [ROOT / place for place in TESTS[module].split() if (ROOT / place).is_file()]
    return [*map(str, sorted(found, key=lambda path: Path(module).stem[:6] not in path.stem))]


def start(module: str, number: int) -> tuple[int, str]:
    """Begin the tests of one mutant, or of none where the number is -1; the process, and what was changed."""
    path, told = ROOT / module, ""
    tree = ast.parse(path.read_text())
    if number >= 0:
        node = list(places(tree))[number]
        before = ast.unparse(node)
        change(node)
        told = f"{module}:{node.lineno}: {before[:60]} -> {ast.unparse(node)[:60]}"
    child = os.fork()
    if child:
        return child, told
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    real = importlib.machinery.SourceFileLoader.get_code

    def get_code(self, name):
        ours = os.path.realpath(self.path) == str(path)
        return compile(ast.fix_missing_locations(copy.deepcopy(tree)), self.path, "exec") if ours else real(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code
    import pytest

    status = pytest.main([*tests_of(module), "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"])
    os._exit(int(status))


def main(count: int, modules: list[str]) -> int:
    import chromadb, dspy, optuna, pandas, pytest, ranx, scipy.stats, sklearn.metrics, sqlalchemy  # noqa: E401, F401, I001

    everything = [(one, n) for one in modules for n, _ in enumerate(places(ast.parse((ROOT / one).read_text())))]
    unchanged = {start(one, -1)[0]: one for one in {frozenset(tests_of(one)): one for one in modules}.values()}
    for child, one in unchanged.items():
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"the tests of {one} fail as it is: {' '.join(tests_of(one))}")
    drawn = random.Random(int(os.environ.get("SEED", "29"))).sample(everything, min(count, len(everything)))
    running: dict[int, tuple[str, str, float]] = {}
    noticed, tried = Counter[str](), Counter[str]()
    with contextlib.suppress(KeyboardInterrupt):  # what was tried so far counts
        while drawn or running:
            while drawn and len(running) < (os.cpu_count() or 1):
                module, number = drawn.pop()
                child, told = start(module, number)
                running[child] = module, told, time.monotonic()
            for child, (module, told, began) in [*running.items()]:
                ended, status = os.waitpid(child, os.WNOHANG)
                if not ended and time.monotonic() - began > 5 * SECONDS:
                    os.killpg(child, signal.SIGKILL)  # what waits without end is noticed too
                elif ended:
                    del running[child]
                    tried[module] += 1
                    noticed[module] += status != 0
                    if status == 0:
                        print("not noticed:", told, flush=True)
            time.sleep(0.02)
    for module in sorted(tried):
        print(f"{noticed[module]:5} of {tried[module]:5} noticed  {module}")
    share = noticed.total() / max(1, tried.total())
    print(f"{noticed.total():5} of {tried.total():5} noticed, {share:.1%}")
    return int(share < LEAST)


if __name__ == "__main__":
    given = sys.argv[1:]
    raise SystemExit(main(int(given[0]) if given else 200, given[1:] or [*TESTS]))
