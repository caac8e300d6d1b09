"""The whole way with the models that querywright ships with: compile, save, load and verify in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from querywright.data import load_sample, split_questions
from querywright.models.embedded import EmbeddedSettings
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.store import open_store
from querywright.optimize.artifacts.save import save_compiled
from querywright.optimize.study.compile import CompileSettings, compile_program
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection

ELSEWHERE = """
import json, sys
import querywright
from querywright.models.embedded import EmbeddedSettings
from querywright.models.lm import engine_of
lm = querywright.resolve_lm("embedded", settings=EmbeddedSettings(max_chars=30, max_items=1))
loaded = querywright.load(sys.argv[1], lm=lm, verify=True)
prediction = loaded(sys.argv[2], json.loads(sys.argv[3]))
print(json.dumps([prediction.answer, [p.id for p in prediction.passages], engine_of(loaded.lm).ledger.total.calls]))
"""


@pytest.mark.slow
def test_compiled_saved_loaded_and_verified_in_another_process(working_folder, tmp_path):
    sample = load_sample()
    splits = split_questions(sample.questions, sizes=(2, 2, 2))
    needed = {key for part in splits for question in part for key in question.evidence}
    passages = [passage for n, passage in enumerate(sample.passages) if passage.id in needed or n % 16 == 0]
    embedder = resolve_embedder("embedded", store=open_store())
    build_collection("cards", passages, embedder=embedder)
    retriever = ChromaRetriever("cards", embedder=embedder)
    short = EmbeddedSettings(max_chars=30, max_items=1)
    lm = resolve_lm("embedded", store=open_store(), settings=short)
    settings = CompileSettings(trials=2, demo_sizes=(1,), reader_demo_sizes=(), threads=2)

    def compiled():
        return compile_program(
            "hcqr",
            splits,
            retriever=retriever,
            lm=lm,
            knobs={"max_passages": 2, "rewriter_sees_options": True},
            settings=settings,
        )

    first = compiled()
    asked = engine_of(lm).ledger.total.calls
    again = compiled()
    assert asked > 0
    assert engine_of(lm).ledger.total.calls == asked
    assert [arm.knobs for arm in again.arms] == [arm.knobs for arm in first.arms]
    assert {one.name for one in first.test} >= {"closed book", "no rewriting", "hcqr compiled", "oracle evidence"}
    assert all(not one.failures for one in first.test)

    save_compiled(tmp_path / "artifact", first, splits, lm=lm, threads=2)
    elsewhere = tmp_path / "elsewhere"  # without the store, so that the answers are made anew
    shutil.copytree(working_folder / "collections", elsewhere / "collections")
    (elsewhere / "models").symlink_to(working_folder / "models")
    question = splits.test[0]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "artifact"), question.question, json.dumps(question.options)],
        env={**os.environ, "QUERYWRIGHT_HOME": str(elsewhere)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer, ids, calls = json.loads(done.stdout.splitlines()[-1])
    row = next(r for one in first.test if one.name == recommended_row(first) for r in one.rows if r.id == question.id)
    assert (answer, ids) == (row.answer, list(row.passages))
    assert calls > 0


def recommended_row(compiled):
    return "no rewriting" if compiled.recommended == "no rewriting" else "hcqr compiled"
