"""Every error that querywright raises on purpose.

QuerywrightError
├── InputError            a user's mistake; the message names the value and the remedy
│   ├── DataError         a question, passage, or file; the message lists all invalid rows
│   ├── ModelError        an LM or embedder that is unknown, missing, or cannot be used
│   ├── PromptTooLongError   a prompt that does not fit the model's context; the message has both sizes
│   ├── CollectionError   a collection that is missing, empty, damaged, locked, or built with a different embedder
│   ├── TechniqueError    an unknown technique or knob, or a knob value out of range
│   └── ArtifactError     an artifact that is missing, damaged, edited, or cannot be written
├── OutageError           the LM failed too often in a row, and the run stopped without a result
└── BudgetError           the run reached its limit
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence


class QuerywrightError(Exception):
    """Base class of the errors that querywright raises on purpose."""


class InputError(QuerywrightError):
    """A user's mistake. The message names the value and the remedy."""


class DataError(InputError):
    """One or more invalid rows, files, or columns.

    Args:
        problems: One line per problem. The message shows the first 20.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        shown = list(self.problems[:20])
        if len(self.problems) > 20:
            shown.append(f"... and {len(self.problems) - 20} more")
        super().__init__("\n".join(shown))


class ModelError(InputError):
    """An LM or embedder that is unknown, missing, or cannot be used."""


class PromptTooLongError(InputError):
    """A prompt does not fit the model's context.

    Args:
        n_tokens: Number of tokens in the prompt.
        n_context: Size of the model's context, in tokens.
        n_answer: Number of tokens reserved for the answer.
    """

    def __init__(self, n_tokens: int, n_context: int, n_answer: int) -> None:
        self.n_tokens, self.n_context, self.n_answer = n_tokens, n_context, n_answer
        super().__init__(
            f"the prompt has {n_tokens} tokens, and {n_answer} more are reserved for the answer, but the model's "
            f"context has {n_context} tokens; show fewer or shorter passages (max_passages), or use a larger context"
        )


class CollectionError(InputError):
    """A collection that is missing, empty, damaged, locked, or built with a different embedder."""


class TechniqueError(InputError):
    """An unknown technique or knob, or a knob value out of range."""


class ArtifactError(InputError):
    """An artifact that is missing, damaged, edited, or cannot be written."""


class OutageError(QuerywrightError):
    """The LM failed too often in a row, and the run stopped without a result."""


class BudgetError(QuerywrightError):
    """The run reached its limit."""


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Return the message for an unknown name: the name, the most similar known name, and all known names.

    Args:
        what: The kind of thing, such as ``technique``.
        name: The unknown name.
        known: The known names.
    """
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown {what} {name!r}{hint}; available: {', '.join(known) or 'none'}"
