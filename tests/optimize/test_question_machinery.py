"""QB-RAG from writing to matching, with an LM that writes perfect questions: what is lost is lost by the machinery."""

from __future__ import annotations

import json
import re

import pytest
from dspy import lm15

from querywright.data import Label, load_sample
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.evaluate import evaluate, metrics_by_name
from querywright.optimize.question_build import build_questions
from querywright.optimize.testsets import make_testset
from querywright.programs import make_program
from querywright.programs.question_writer import QuestionWriter
from querywright.retrieval.engines import open_retriever
from querywright.retrieval.index import build_collection

FRAMES = (
    ("What ", "Please tell me what "),
    ("Which ", "I would like to know which "),
    ("How ", "Could you explain how "),
    ("When ", "Do you know when "),
    ("Why ", "I wonder why "),
)


@pytest.fixture(scope="module")
def world():
    """Cards, each with the questions that people wrote and that it decides."""
    sample = load_sample()
    asked = {}
    for question in sample.questions:
        for card, label in question.evidence.items():
            if label == Label.ENTAILED:
                asked.setdefault(card, []).append(question.question)
    cards = [card for card in sample.passages if card.id in asked][:60]
    return cards, {card.id: asked[card.id] for card in cards}


class Perfect:
    """Writes the people's questions for the card that it is shown, judges them whole, and words them anew."""

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __init__(self, cards, asked):
        self.questions = {" ".join(card.text.split()): asked[card.id] for card in cards}

    def complete(self, request):
        message = lm15.Message.assistant([lm15.TextPart(json.dumps(self.answer(request)))])
        usage = lm15.Usage(input_tokens=1, output_tokens=1)
        return lm15.Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)

    def answer(self, request):
        asked = request.messages[-1].text
        if "passage:" in asked and "question:" in asked:
            return {"reason": "It says so.", "label": "complete"}
        if "passage:" in asked:
            return {"questions": next(found for text, found in self.questions.items() if text in asked)}
        question = re.findall(r"question: (.+)", asked)[-1]
        for first, other in FRAMES:
            question = question.replace(first, other)
        return {"rephrased_question": f"A question: {question}"}

    def close(self):
        pass


def test_perfect_questions_are_found_again_when_they_are_asked_in_other_words(world, make_lm, tmp_path):
    cards, asked = world
    perfect = make_lm(Perfect(cards, asked))
    embedder = resolve_embedder("embedded", store=open_store(tmp_path))
    build_collection("cards", cards, embedder=embedder, home=tmp_path)
    report = build_questions("cards", lm=perfect, embedder=embedder, writer=QuestionWriter(5), threads=2, home=tmp_path)
    assert report.index.count == len({(card, text) for card, texts in asked.items() for text in texts})
    made = make_testset("rephrase", "cards", lm=perfect, number=40, threads=2, home=tmp_path)
    stored = {text for texts in asked.values() for text in texts}
    assert len(made.questions) == 40
    assert stored.isdisjoint(question.question for question in made.questions)

    index = open_retriever("cards", engine="questions", embedder=embedder, home=tmp_path)

    def recovery(technique, retriever, **knobs):
        program = make_program(technique, retriever, max_passages=1, **knobs)
        metrics = metrics_by_name(["exact_recovery@1"])
        found = evaluate(program, made.questions, lm=perfect, name=technique, metrics=metrics)
        return found.mean("exact_recovery@1").value

    whole = recovery("qb_rag", index)
    assert whole >= 0.95
    assert whole > recovery("plain", index.plain)
    # Half of the questions left out are half of the parents gone: their passages are found through others or not.
    assert recovery("qb_rag", index, coverage=1) < whole
