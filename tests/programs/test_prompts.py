"""Pins the text of every prompt: a change of it is meant, and measured, or it is a slip."""

from __future__ import annotations

from pathlib import Path

from querywright.programs import READERS, TECHNIQUES, make_reader

PINNED = Path(__file__).with_name("prompts.txt")


def shown(name, predictor):
    """A prompt as it is kept in the file: instructions, inputs, outputs."""
    signature = predictor.signature
    inputs = [f"< {field}" for field in signature.input_fields]
    outputs = [f"> {field}: {info.json_schema_extra['desc']}" for field, info in signature.output_fields.items()]
    return "\n".join([f"== {name}", signature.instructions, *inputs, *outputs, ""])


def test_every_prompt_reads_as_it_is_pinned():
    modules = {name: technique() for name, technique in TECHNIQUES.items()}
    modules |= {name: make_reader(name) for name in READERS}
    prompts = [
        shown(f"{name}.{attribute}", predictor)
        for name, module in modules.items()
        for attribute, predictor in module.named_predictors()
    ]

    assert "\n".join(prompts) == PINNED.read_text(encoding="utf-8")
