"""What is wrong in a command line, all at once, and errors of the library in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from cyclopts import App, Argument, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError

from querywright.errors import InputError

_PYTHON = re.compile(r"\b([a-z_]+)=(?:\.\.\.)?(?![\w\"'{\[(-])")
OTHERWISE = {"--retriever": "--collection", "--api-key": "--api-key-env", "--questions": "--data"}
"""What the command line calls what Python calls otherwise."""

MEANT = {"--metric": "--objective", "--objective": "--metric"}
"""What commands that tune, and commands that measure, call what the others call otherwise."""

MOST = 20
"""Mistakes that are told at once."""


def checked(look: str) -> Parameter:
    """An option of names, each of which is looked at by MODULE:FUNCTION of ours before the command runs."""

    def validate(_: Any, value: Any) -> None:
        module, _, function = look.partition(":")
        look_at, wrong = getattr(import_module(f"querywright.{module}"), function), []
        for one in [value] if isinstance(value, str) else value or ():
            try:
                look_at(one)
            except InputError as error:
                wrong.append(str(error))
        if wrong:
            raise ValueError("\n".join(wrong)) from InputError()

    return Parameter(validator=validate)


def mistakes(app: App, words: Sequence[str], error: CycloptsError) -> Iterator[str]:
    """Every mistake of a command line: what was found is taken out, or put in, and the rest is looked at again."""
    left, strange, told = list(words), False, set[str]()
    for _ in range(MOST):
        own = error.__cause__ is not None and isinstance(error.__cause__.__cause__, InputError)
        lacking = []
        if isinstance(error, MissingArgumentError):
            lacking = [] if error.argument is None else [one.name for one in _lacking(error.argument)]
            if not strange and not (lacking and told.issuperset(lacking)):  # else an unknown option may have taken it
                yield f"{', '.join(lacking)} must be given" if lacking else str(error)
        elif error.argument is not None and error.argument.name in told:
            return  # what was put in its place
        elif isinstance(error, UnknownOptionError) and (meant := _meant(error)):
            yield f"Unknown option: {error.token.keyword or error.token.value}. Did you mean {meant}?"
        else:
            yield from str(getattr(error, "exception_message", "")).splitlines() if own else [str(error)]
        if isinstance(error, UnknownOptionError):
            strange, at = True, left.index(error.token.keyword or error.token.value)
            takes = "=" not in left[at] and at + 1 < len(left) and not left[at + 1].startswith("-")
            left[at : at + 1 + takes] = []
        elif isinstance(error, MissingArgumentError):
            if not lacking:
                return
            told.update(lacking)
            left = [word for word in left if word not in lacking]
            left += [word for name in lacking for word in ((name, "x") if name.startswith("-") else ("plain",))]
        elif error.argument is not None and error.argument.tokens:
            for token in error.argument.tokens:
                left = _without(left, token.keyword, token.value)
            told.add(error.argument.name)
        else:
            return
        try:
            app.parse_args(left, exit_on_error=False, print_error=False)
        except CycloptsError as further:
            error = further
        else:
            return


def _meant(error: UnknownOptionError) -> str | None:
    """What the command that ran calls an option of another one."""
    meant = MEANT.get(error.token.keyword or error.token.value)
    return meant if any(meant in one.names for one in error.argument_collection) else None


def _lacking(argument: Argument) -> list[Argument]:
    """The arguments that must be given and are not: one, or those of a group."""
    if argument.children:
        return [found for one in argument.children if one.required for found in _lacking(one)]
    return [] if argument.tokens and argument.name != argument.tokens[-1].keyword else [argument]


def _without(words: list[str], option: str | None, value: str) -> list[str]:
    """The words without an option and its value, or without a value that stands alone."""
    taken = [value] if option is None else [option, value]
    for at in range(len(words)):
        if words[at] == f"{option}={value}":
            return words[:at] + words[at + 1 :]
        if words[at : at + len(taken)] == taken:
            return words[:at] + words[at + len(taken) :]
    return words


def in_options(text: str, app: App, words: Sequence[str]) -> str:
    """An error in which what Python calls ``max_passages=`` is called what the command that ran calls it."""
    _, apps, _ = app.parse_commands(words)
    known = {name for one in apps[-1].assemble_argument_collection() for name in one.names}

    def said(found: re.Match[str]) -> str:
        option = "--" + found[1].replace("_", "-")
        option = OTHERWISE.get(option, option)
        return option if option in known else found[0]

    return _PYTHON.sub(said, text)
