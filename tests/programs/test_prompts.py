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


def all_prompts():
    """The prompts of every technique and reader."""
    modules = {name: technique() for name, technique in TECHNIQUES.items()}
    modules |= {"rrs:select_by=needs": TECHNIQUES["rrs"](select_by="needs")}
    modules |= {name: make_reader(name) for name in READERS}
    return "\n".join(
        shown(f"{name}.{attribute}", predictor)
        for name, module in modules.items()
        for attribute, predictor in module.named_predictors()
    )


def test_every_prompt_reads_as_it_is_pinned():
    assert all_prompts() == PINNED.read_text(encoding="utf-8"), "read what changed, then run: make table"


if __name__ == "__main__":
    PINNED.write_text(all_prompts(), encoding="utf-8")
