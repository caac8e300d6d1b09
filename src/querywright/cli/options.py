"""The options and arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from querywright.data.hub import names_of

QuestionsArgument = Annotated[
    str,
    typer.Argument(
        metavar="QUESTIONS",
        help="A file or folder of labelled questions (BEIR, AutoRAG, FlashRAG and Ragas too), sample, or hf:NAME: "
        f"a dataset of the hub, or {names_of('questions')}.",
    ),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="Working folder. Default: $QUERYWRIGHT_HOME, or .querywright here.",
        show_default=False,
    ),
]
LMOption = Annotated[
    str,
    typer.Option("--lm", metavar="NAME", help="embedded, gguf:PATH, or a DSPy model string (openai/...)."),
]
ApiBaseOption = Annotated[
    str | None,
    typer.Option("--api-base", metavar="URL", help="Address of an OpenAI-compatible server.", show_default=False),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="Environment variable that holds the key.", show_default=False),
]
EmbedderOption = Annotated[
    str,
    typer.Option("--embedder", metavar="NAME", help="embedded, or a sentence-transformers name or path."),
]
EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="dense, bm25, hybrid (both), questions or expanded."),
]
TechniqueEngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="dense, bm25, hybrid (both), questions or expanded. Default: the technique's own, or dense.",
        show_default=False,
    ),
]
RerankerOption = Annotated[
    str | None,
    typer.Option(
        "--reranker",
        metavar="NAME",
        help="A cross-encoder's name or path, for techniques that rerank.",
        show_default=False,
    ),
]
RewriterOption = Annotated[
    Path | None,
    typer.Option(
        "--rewriter",
        metavar="FOLDER",
        help="A trained rewriter, which techniques ask in place of the LM, and readers do not. With an artifact that "
        "was compiled with a rewriter: instead of that one; one that was compiled without keeps none beside others, "
        "and takes none alone.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=THEIRS",
        help="The data's name of a column, such as text=contents. Repeatable.",
        show_default=False,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="Read the first N rows.", show_default=False),
]
SplitOption = Annotated[
    str | None, typer.Option("--split", metavar="NAME", help="Split of a dataset or folder.", show_default=False)
]
KnobOption = Annotated[
    list[str] | None,
    typer.Option("--knob", metavar="NAME=VALUE", help="Such as max_passages=10. Repeatable.", show_default=False),
]
CollectionOption = Annotated[
    str | None,
    typer.Option("--collection", metavar="NAME", help="The collection that is searched.", show_default=False),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Repeatable. Default: accuracy, and by evidence where it is labelled.",
        show_default=False,
    ),
]
JudgeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--judge",
        metavar="NAME",
        help="A judge (querywright judge list) or a saved one's path. Repeatable.",
        show_default=False,
    ),
]
JudgeLMOption = Annotated[
    str | None,
    typer.Option(
        "--judge-lm",
        metavar="NAME",
        help="The LM that judges, usefulness if no --judge is given. Default: --lm, with its address and key.",
        show_default=False,
    ),
]
WriterJudgeLMOption = Annotated[
    str | None,
    typer.Option(
        "--judge-lm",
        metavar="NAME",
        help="The LM that judges. Default: --lm, with its address and key.",
        show_default=False,
    ),
]
JudgeApiBaseOption = Annotated[
    str | None,
    typer.Option("--judge-api-base", metavar="URL", help="Address of the judge's server.", show_default=False),
]
JudgeKeyOption = Annotated[
    str | None,
    typer.Option(
        "--judge-api-key-env",
        metavar="NAME",
        help="Environment variable that holds the judge's key.",
        show_default=False,
    ),
]
GuidelinesOption = Annotated[
    Path | None,
    typer.Option(
        "--guidelines",
        metavar="FILE",
        help="Points that answers are held against, for --judge coverage.",
        show_default=False,
    ),
]
FailuresOption = Annotated[
    float,
    typer.Option("--max-failures", metavar="SHARE", min=0.0, max=1.0, help="Share of questions that may fail, 0 to 1."),
]
ReaderOption = Annotated[
    str,
    typer.Option("--reader", metavar="NAME", help="auto, multiple_choice, short_answer, grounded or none."),
]
ThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Questions under way at a time.")]
CallsOption = Annotated[
    int | None,
    typer.Option("--max-calls", metavar="N", min=1, help="Stop after N LM calls.", show_default=False),
]
