"""LM engine errors that DSPy passes on unchanged, and functions that remove API keys from error messages."""

from __future__ import annotations

import re

from dspy.utils.exceptions import ContextWindowExceededError, LMConfigurationError, LMError

from querywright.errors import BudgetError, ModelError, OutageError, PromptTooLongError, QuerywrightError

_SECRET = re.compile(
    r"(?i)\b(?:sk|pk|rk|gsk|xai|hf|key|token)[-_][A-Za-z0-9_\-]{8,}"  # API keys with common prefixes
    r"|\bAIza[A-Za-z0-9_\-]{20,}"
    r"|(?<=bearer )[^\s\"',]+"
    r"|(?<=://)[^/\s?#]+(?=@)"  # user:password, or a token, in a URL
)

_LONG = 8
"""A secret with at least this many characters does not occur in text by chance."""


class LMOutageError(OutageError, LMError):
    """The model failed too many times in a row, so no more requests are sent."""


class LMBudgetError(BudgetError, LMError):
    """The budget is used up, so no more requests are sent."""


class LMModelError(ModelError, LMConfigurationError):
    """The model cannot be used."""


class LMStoreError(QuerywrightError, LMError):
    """The store cannot be used."""


class LMRefusedError(LMError):
    """The LM or its service's content filter refused to answer, and would refuse the same request again."""


class LMPromptTooLongError(PromptTooLongError, ContextWindowExceededError):
    """The prompt does not fit in the model's context."""

    def __init__(self, n_tokens: int, n_context: int, n_answer: int) -> None:
        text = str(PromptTooLongError(n_tokens, n_context, n_answer))
        ContextWindowExceededError.__init__(self, message=text)
        self.n_tokens, self.n_context, self.n_answer = n_tokens, n_context, n_answer


def redact(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Return the text with API keys and passwords replaced by ``***``.

    Args:
        text: Any text, such as a service's error message.
        secrets: Strings to remove. Secrets shorter than 8 characters are removed only where they are whole words.
            Strings that look like API keys are always removed.
    """
    for secret in secrets:
        if len(secret) >= _LONG:
            text = text.replace(secret, "***")
        elif secret:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return _SECRET.sub("***", text)


def redacted(error: LMError, secrets: tuple[str, ...] = ()) -> LMError:
    """Return the error with API keys removed from its message, and without its causes, which may contain keys."""
    error.message = redact(error.message, secrets)
    error.args = tuple(redact(a, secrets) if isinstance(a, str) else a for a in error.args)
    error.__cause__ = error.__context__ = None
    return error
