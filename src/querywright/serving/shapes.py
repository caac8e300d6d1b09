"""JSON models for requests and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from querywright.data.declined import says_declined

Turn = Annotated[str, Field(max_length=4000, pattern=r"\S")]
Option = Annotated[str, Field(max_length=1000, pattern=r"\S")]


class AskRequest(BaseModel):
    """A question."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: Turn
    options: list[Option] | None = Field(
        None, min_length=2, max_length=20, json_schema_extra={"uniqueItems": True},
        description="Options to choose from: at least two, all different. Leading and trailing spaces are ignored.",
    )  # fmt: skip
    history: list[Turn] | None = Field(
        None, max_length=100, description="Earlier turns of the conversation, oldest first."
    )
    trace: bool = False
    stream: bool = False

    @field_validator("options")
    @classmethod
    def _differ(cls, options: list[str] | None) -> list[str] | None:
        if len({option.strip() for option in options or ()}) < len(options or ()):
            raise ValueError("options must be unique")
        return options


class PassageOut(BaseModel):
    """A passage."""

    id: str
    title: str
    text: str
    metadata: dict[str, JsonValue]


class AnswerOut(BaseModel):
    """An answer and its sources."""

    answer: str | None = Field(description="The answer; null if the program has no reader.")
    support: list[str] | None = Field(description="IDs of the passages that support the answer; null if not reported.")
    passages: list[PassageOut] = Field(description="Passages, best first.")
    queries: list[dict[str, str]] = Field(description="Queries, each with a role and a text.")
    fallbacks: list[str] = Field(description="Steps that fell back to a simpler method.")
    declined: bool = Field(description="Whether the reader said that the passages do not answer the question.")
    trace: list[dict[str, Any]] | None = Field(description="All steps, if the request sets trace to true.")
    artifact: str
    version: str = Field(description="The version of the artifact that answered.")
    seconds: float
    id: str = Field(description="Request ID, also in the X-Request-Id header.")


class Health(BaseModel):
    """The state of the server."""

    artifact: str
    version: str
    technique: str
    reader: str | None
    token: bool = Field(description="Whether the server requires a token.")
    rebuilt: bool = Field(
        description="Whether the collection was rebuilt since the server opened it. To search the new passages, "
        "restart the server."
    )


class Problem(BaseModel):
    """The body of every error response."""

    error: dict[str, str] = Field(description="kind: an error code for programs; message: a sentence for people.")


def has_declined(answer: str | None, options: Sequence[str]) -> bool:
    """Return whether an answer says that the passages do not answer the question. False if the answer is an option."""
    return bool(answer) and answer not in [option.strip() for option in options] and says_declined(str(answer))
