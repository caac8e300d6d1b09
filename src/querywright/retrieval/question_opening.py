"""Opening the questions of a collection: what can be wrong with them, and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.models.embedder import TextEmbedder
from querywright.retrieval.answer_pairs import ANSWERS, answers, current_pairs, read_pairs
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import published_passages, read_manifest
from querywright.retrieval.question_records import questions_folder, questions_name

_logger = logging.getLogger(__name__)


def build_command(name: str) -> str:
    """The command that writes the questions of a collection, for messages."""
    return f"querywright questions build {name}"


def fill_command(name: str) -> str:
    """The command that finds further passages which answer the questions of a collection, for messages."""
    return f"querywright questions fill {name}"


def open_questions(name: str, embedder: TextEmbedder, home: Path | None) -> ChromaRetriever:
    """The questions of a collection.

    Raises:
        CollectionError: There are none, they are damaged, or they were built with another embedder.
    """
    try:
        opened = ChromaRetriever(questions_name(name), embedder=embedder, home=home)
    except CollectionError as error:
        raise _explained(name, home, error, embedder) from error
    _check(name, opened.passages())
    return opened


def published_questions(name: str, home: Path | None) -> list[Passage]:
    """The same questions without their index, in the order of their ids.

    Raises:
        CollectionError: There are none, or they are damaged.
    """
    try:
        questions = list(published_passages(questions_folder(name, home), home)[1].values())
    except CollectionError as error:
        raise _explained(name, home, error) from error
    _check(name, questions)
    return questions


def fresh(questions: Iterable[Passage], passages: Mapping[str, Passage]) -> list[Passage]:
    """The questions whose passage is there and reads as it did when they were written, in their order.

    Args:
        questions: Published questions.
        passages: The passages there are, by id.
    """
    digests = {id: passage.text_digest() for id, passage in passages.items()}
    return [one for one in questions if digests.get(str(one.metadata["passage"])) == one.metadata["digest"]]


def live_questions(name: str, questions: Collection[Passage], passages: Mapping[str, Passage]) -> list[Passage]:
    """The fresh ones of a collection's questions; a warning says how many are not.

    Args:
        name: The collection of the passages.
        questions: Its published questions.
        passages: The passages there are, by id.
    """
    live = fresh(questions, passages)
    if len(live) < len(questions):
        _logger.warning(
            "%d of %d questions of the collection %r are of passages that are gone or were changed since, and are left "
            "out; replace them: %s",
            len(questions) - len(live), len(questions), name, build_command(name),
        )  # fmt: skip
    return live


def _explained(
    name: str, home: Path | None, error: CollectionError, embedder: TextEmbedder | None = None
) -> CollectionError:
    """What keeps questions from being opened, with the remedy for questions, which no one indexes from a file."""
    try:
        manifest = read_manifest(questions_folder(name, home))
    except CollectionError:  # the one that is explained
        return _damaged(name, error)
    if manifest is None:
        return CollectionError(f"there are no questions for the collection {name!r}; write some: {build_command(name)}")
    if embedder is not None and manifest.embedder != embedder.id:
        return CollectionError(
            f"the questions of the collection {name!r} were embedded with {manifest.embedder!r}, but the embedder "
            f"given is {embedder.id!r}; give that one, or embed the questions again: {build_command(name)}"
        )
    return _damaged(name, error)


def _check(name: str, questions: Iterable[Passage]) -> None:
    """Whether they are questions about passages, and no passages of somebody's own."""
    for question in questions:
        if not {"passage", "digest", "label"} <= question.metadata.keys():
            raise CollectionError(
                f"the collection {questions_name(name)!r} holds no questions about passages ({question.id!r} names "
                f"none); give it another name, then run {build_command(name)}"
            )


def _damaged(name: str, error: CollectionError) -> CollectionError:
    return CollectionError(
        f"the questions of the collection {name!r} cannot be searched: {str(error).partition(';')[0]}; "
        f"run {build_command(name)}"
    )


def stored_answers(
    name: str, questions: Container[str], passages: Mapping[str, Passage], home: Path | None
) -> dict[str, tuple[str, ...]] | None:
    """By question the further passages that are known to answer it; None where nobody has looked.

    Args:
        name: The collection of the passages.
        questions: Ids of the questions there are.
        passages: The passages there are, by id; what is known of one that has changed since does not count.
        home: The working folder.

    Raises:
        CollectionError: What is stored is damaged.
    """
    folder = questions_folder(name, home)
    if not (folder / ANSWERS).exists():
        return None
    pairs = read_pairs(folder)
    digests = {pair.passage: passages[pair.passage].text_digest() for pair in pairs if pair.passage in passages}
    held, stale = current_pairs(pairs, questions, digests)
    if stale:
        _logger.warning(
            "%d of %d stored answers to questions of the collection %r are of passages or questions that are gone or "
            "were changed since; look again: %s",
            stale, len(pairs), name, fill_command(name),
        )  # fmt: skip
    return answers(held)
