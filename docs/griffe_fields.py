"""Named tuples and pydantic models document their fields under ``Args``: their fields are shown as parameters."""

from __future__ import annotations

from typing import Any

import griffe

BASES = frozenset({"NamedTuple", "BaseModel", "BaseRetriever", "StrictModel", "SearchSpec"})


class RootFolders(griffe.Extension):
    """Puts the packages that stand in folders of the root where they are at run time: below ``querywright``."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Read them after the package; griffe calls this for every package that it has read."""
        if pkg.path == "querywright":
            for name in ("programs", "metrics", "optimize"):
                pkg.set_member(name, loader.load(name, try_relative_path=False))


class Fields(griffe.Extension):
    """Gives such a class the ``__init__`` that it has at run time."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the parameters; griffe calls this for every class that it has read."""
        if "__init__" in cls.members or not any(str(base).rpartition(".")[2] in BASES for base in cls.bases):
            return
        fields = [
            griffe.Parameter(
                member.name,
                annotation=member.annotation,
                kind=griffe.ParameterKind.keyword_only,
                default=_default(member.value),
            )
            for member in cls.members.values()
            if isinstance(member, griffe.Attribute) and member.annotation is not None
        ]
        init = griffe.Function(
            "__init__",
            lineno=cls.lineno,
            endlineno=cls.endlineno,
            parent=cls,
            parameters=griffe.Parameters(
                griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword), *fields
            ),
            returns="None",
        )
        cls.set_member("__init__", init)


def _default(value: Any) -> Any:
    """What a field is without a value: the default inside pydantic's ``Field``, or the value itself."""
    if not isinstance(value, griffe.ExprCall) or not str(value.function).endswith("Field"):
        return value
    given = {one.name: one.value for one in value.arguments if isinstance(one, griffe.ExprKeyword)}
    if "default_factory" not in given:
        return given.get("default")
    factory = given["default_factory"]
    if isinstance(factory, griffe.ExprLambda):
        return factory.body
    return griffe.ExprCall(factory, []) if isinstance(factory, griffe.Expr) else factory
