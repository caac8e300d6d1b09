"""What is asked and answered, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model, field_validator

from querywright.data.declined import says_declined
from querywright.optimize.artifacts.files import Golden
from querywright.serving.settings import ServeSettings

_TEXT = r"\S"


class AskedIn(BaseModel):
    """A question."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: str
    options: list[str] | None = None
    history: list[str] | None = None
    trace: bool = False

    @field_validator("options", check_fields=False)
    @classmethod
    def _differ(cls, options: list[str] | None) -> list[str] | None:
        if len({option.strip() for option in options or ()}) < len(options or ()):
            raise ValueError("two of them are the same")
        return options


class PassageOut(BaseModel):
    """A passage."""

    id: str
    title: str
    text: str
    metadata: dict[str, JsonValue]


class QueryOut(BaseModel):
    """A query, and why it was asked."""

    role: str
    text: str


class StepOut(BaseModel):
    """What one step did; steps of the same stage ran side by side."""

    kind: str = Field(description="lm, search, rerank or gate.")
    name: str
    stage: int
    given: dict[str, Any]
    made: Any = Field(description="Of a search: ids by what was searched for, best first.")
    scores: dict[str, list[float | None]] = Field(description="Of a search: scores of those, by the same.")


class AnswerOut(BaseModel):
    """An answer and what it came from."""

    answer: str | None = Field(description="None without a reader, and from /retrieve.")
    support: list[str] | None = Field(description="Passages that the answer rests on; null where nobody says.")
    passages: list[PassageOut] = Field(description="Best first.")
    queries: list[QueryOut]
    fallbacks: list[str] = Field(description="Steps that fell back to something plainer.")
    declined: bool = Field(description="The reader said that the passages do not answer.")
    trace: list[StepOut] | None = Field(description="What was asked and searched, where the request has trace: true.")
    artifact: str
    version: str = Field(description="Which state of the artifact answered.")
    seconds: float
    id: str = Field(description="The request's id, as in the header X-Request-Id.")


class Examples(BaseModel):
    """Questions to begin with."""

    examples: list[Golden]


class ArtifactOut(BaseModel):
    """A loaded artifact."""

    name: str
    version: str
    technique: str
    reader: str | None


class Health(BaseModel):
    """How the server is."""

    live: bool
    ready: bool
    token: bool = Field(description="Whether a token is needed.")
    artifact: ArtifactOut


class ErrorBody(BaseModel):
    """What went wrong."""

    kind: str
    message: str


class Problem(BaseModel):
    """The body of every failure."""

    error: ErrorBody


def request_shapes(settings: ServeSettings) -> tuple[type[AskedIn], type[AskedIn]]:
    """Return the requests of ``/retrieve`` and ``/ask`` with the limits of these settings."""
    option = Annotated[str, Field(max_length=settings.max_option, pattern=_TEXT)]
    turn = Annotated[str, Field(max_length=settings.max_question, pattern=_TEXT)]
    told = "Turns of the conversation before the question, the earliest first."
    fields: dict[str, Any] = {
        "question": (str, Field(max_length=settings.max_question, pattern=_TEXT)),
        "options": (
            list[option] | None,
            Field(
                None,
                min_length=2,
                max_length=settings.max_options,
                description="Texts to choose from, two or more that differ by more than the space around them.",
                json_schema_extra={"uniqueItems": True},
            ),
        ),
        "history": (list[turn] | None, Field(None, max_length=100, description=told)),
    }
    retrieve = create_model("Asked", __base__=AskedIn, **fields)
    return retrieve, create_model("AskedToStream", __base__=retrieve, stream=(bool, False))


def has_declined(answer: str | None, options: Sequence[str]) -> bool:
    """Return whether an answer says that the passages do not answer the question. An option is never such an answer."""
    return bool(answer) and answer not in [option.strip() for option in options] and says_declined(str(answer))


def passages_out(passages: Any) -> list[dict[str, Any]]:
    """Passages of a prediction."""
    return [{"id": one.id, "title": one.title, "text": one.text, "metadata": dict(one.metadata)} for one in passages]


def answer_out(prediction: Any, options: Sequence[str], *, trace: bool = False, **served: Any) -> dict[str, Any]:
    """A prediction as ``AnswerOut`` has it; of an LM no name is told, which may hold a place."""
    answer, support = prediction.answer, prediction.get("support")
    return {
        "answer": answer,
        "support": None if support is None else list(support),
        "passages": passages_out(prediction.passages),
        "queries": [{"role": str(one.role), "text": one.text} for one in prediction.queries],
        "fallbacks": list(prediction.fallbacks),
        "declined": has_declined(answer, options),
        "trace": [{name: getattr(one, name) for name in StepOut.model_fields} for one in prediction.steps]
        if trace
        else None,
        **served,
    }
