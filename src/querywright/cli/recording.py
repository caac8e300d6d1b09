"""``querywright recording``: write an LM's answers to a file, which ``--lm recording:FILE`` replays."""

from __future__ import annotations

from pathlib import Path

from querywright.cli import options as opt
from querywright.cli.show import emit, say

recording_app = opt.make_app("recording", "Record an LM's answers for --lm recording:FILE.")


@recording_app.command(name="write")
def write(
    file: Path,
    /,
    *,
    model: opt.Names = (),
    label: opt.Name = "",
    output: opt.Output = opt.Output(),
) -> None:
    """Write all cached answers of an LM to a file.

    To record only one run, use a separate --home for that run. A replayed run caches only the answers that it uses.

    Example: querywright recording write tests/answers.jsonl.gz --home build/recorded

    Args:
        file: The file, .jsonl.gz.
        model: The LM, if the workspace has answers from several LMs. Repeatable.
        label: Name to show for the LM in results. Default: the LM's name.
    """
    from querywright.models.recording import write_recording
    from querywright.models.store import open_store

    label, count, several = write_recording(file, open_store(output.folder), models=model, label=label)
    size = file.stat().st_size
    left_out = f"; prompts with more than one answer: {several} (one answer kept)" if several else ""
    facts = {"file": file.name, "model": label, "answers": count, "several": several, "bytes": size}
    emit(output.as_json, facts, lambda: say(f"{file}: {count} answers from {label}, {size:,} bytes{left_out}"))


@recording_app.command(name="show")
def show(file: Path, /, *, as_json: opt.Json = False) -> None:
    """Show the contents of a recording.

    Example: querywright recording show tests/answers.jsonl.gz

    Args:
        file: A recording.
    """
    from querywright.models.recording import read_recording

    head, answers = read_recording(file)
    facts = {
        "model": head.model,
        "made": str(head.made),
        "answers": len(answers),
        "prompts": len({one.instructions for one in answers.values()}),
        "input_tokens": sum(one.input_tokens or 0 for one in answers.values()),
        "output_tokens": sum(one.output_tokens or 0 for one in answers.values()),
    }
    emit(as_json, facts, lambda: say(
        f"{file.name}: {facts['answers']} answers from {head.model}, recorded on {head.made}; "
        f"different instructions: {facts['prompts']}; input tokens: {facts['input_tokens']:,}; "
        f"output tokens: {facts['output_tokens']:,}"
    ))  # fmt: skip
