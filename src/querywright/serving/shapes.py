"""What goes in and out: the shapes of requests and answers, as OpenAPI tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model

from querywright.optimize.artifacts.watchers import has_declined
from querywright.serving.failures import RequestError
from querywright.serving.settings import ServeSettings

_TEXT = r"\S"


class Asked(BaseModel):
    """A question."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: str
    options: list[str] | None = None
    artifact: str | None = None


class AskedToStream(Asked):
    """A question whose answer may be streamed."""

    stream: bool = False


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


class Answered(BaseModel):
    """An answer and what it came from."""

    answer: str | None = Field(description="None without a reader, and from /retrieve.")
    support: list[str] | None = Field(description="Passages that the answer rests on; null where nobody says.")
    passages: list[PassageOut] = Field(description="Best first.")
    queries: list[QueryOut]
    fallbacks: list[str] = Field(description="Steps that fell back to something plainer.")
    declined: bool = Field(description="The reader said that the passages do not answer.")
    artifact: str
    version: str = Field(description="Which state of the artifact answered.")
    seconds: float
    id: str = Field(description="The request's id, as in the header X-Request-Id.")


class ArtifactOut(BaseModel):
    """A loaded artifact."""

    name: str
    version: str
    technique: str
    reader: str | None
    loaded: str = Field(description="When, ISO 8601.")


class Health(BaseModel):
    """How the server is."""

    live: bool
    ready: bool
    token: bool = Field(description="Whether a token is needed.")
    artifacts: list[ArtifactOut]


class Change(BaseModel):
    """An artifact that was loaded again."""

    name: str
    before: str
    after: str


class Reloaded(BaseModel):
    """What a reload did."""

    artifacts: list[Change]


class ErrorBody(BaseModel):
    """What went wrong."""

    kind: str
    message: str


class Problem(BaseModel):
    """The body of every failure."""

    error: ErrorBody


def request_shapes(settings: ServeSettings) -> tuple[type[Asked], type[AskedToStream]]:
    """The requests of ``/retrieve`` and ``/ask`` with the limits of these settings."""
    option = Annotated[str, Field(max_length=settings.max_option, pattern=_TEXT)]
    fields: dict[str, Any] = {
        "question": (str, Field(max_length=settings.max_question, pattern=_TEXT)),
        "options": (
            list[option] | None,
            Field(
                None,
                min_length=2,
                max_length=settings.max_options,
                description="Texts to choose from, two or more that differ by more than the space around them.",
            ),
        ),
        "artifact": (str | None, Field(None, max_length=255, description="Its name; the first one if it is left out.")),
    }
    return (
        create_model("Asked", __base__=Asked, **fields),
        create_model("AskedToStream", __base__=AskedToStream, **fields),
    )


def read_asked(shape: type[Asked], body: bytes) -> Any:
    """A request from its body.

    Args:
        shape: What it must look like.
        body: JSON.

    Raises:
        RequestError: It is no JSON, or looks otherwise.
    """
    try:
        asked = shape.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        if any(one["type"] == "json_invalid" for one in found):
            raise RequestError(400, "not_json", "the body is not JSON") from None
        told = "; ".join(f"{'.'.join(str(part) for part in one['loc']) or 'body'}: {one['msg']}" for one in found[:5])
        raise RequestError(422, "invalid", told) from None
    options = [option.strip() for option in asked.options or ()]
    if len(set(options)) < len(options):
        raise RequestError(422, "invalid", "options: two of them are the same") from None
    return asked


def queries_out(queries: Any) -> list[dict[str, str]]:
    """Queries of a prediction, or of an event."""
    return [
        {"role": str(one["role"]), "text": one["text"]}
        if isinstance(one, Mapping)
        else {"role": str(one.role), "text": one.text}
        for one in queries
    ]


def passages_out(passages: Any) -> list[dict[str, Any]]:
    """Passages of a prediction."""
    return [{"id": one.id, "title": one.title, "text": one.text, "metadata": dict(one.metadata)} for one in passages]


def answer_out(
    prediction: Any, options: Sequence[str], *, artifact: str, version: str, seconds: float, id: str
) -> dict[str, Any]:
    """A prediction as ``Answered`` has it.

    Args:
        prediction: What a program gave.
        options: Those of the question.
        artifact: Its name.
        version: Its state.
        seconds: From request to answer.
        id: The request's.
    """
    answer, support = prediction.answer, prediction.get("support")
    return {
        "answer": answer,
        "support": None if support is None else list(support),
        "passages": passages_out(prediction.passages),
        "queries": queries_out(prediction.queries),
        "fallbacks": list(prediction.fallbacks),
        "declined": has_declined(answer, options),
        "artifact": artifact,
        "version": version,
        "seconds": round(seconds, 4),
        "id": id,
    }
