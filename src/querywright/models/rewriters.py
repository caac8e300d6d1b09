"""A rewriter on disk: a small model's adapter, or a whole small model, that was taught to rewrite.

``rewriter.json`` binds the other files by SHA-256 and says what they are for: the adapter as peft has it and, for the
embedded model, as llama.cpp has it; or a whole model; the tokenizer, unless the embedded model brings it;
``card.json``, ``curve.jsonl`` and ``README.md`` for people. Tensors are in safetensors and GGUF. No address is stored,
and no absolute path.
"""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from querywright.checksummed import Checksummed
from querywright.errors import ArtifactError
from querywright.files import file_digests, json_digest, place_of, replace_folder
from querywright.models.embedded import EmbeddedSettings
from querywright.models.engine_errors import LMModelError
from querywright.models.gguf_files import packaged_file
from querywright.models.lora_gguf import write_lora_gguf
from querywright.models.rewriter_bases import RewriterBase

MANIFEST = "rewriter.json"
ADAPTER, ADAPTER_CONFIG, ADAPTER_GGUF = "adapter.safetensors", "adapter_config.json", "adapter.gguf"
MODEL, MODEL_CONFIG = "model.safetensors", "config.json"
CARD, CURVE, README = "card.json", "curve.jsonl", "README.md"
_WEIGHTS = (ADAPTER, ADAPTER_CONFIG, ADAPTER_GGUF, MODEL, MODEL_CONFIG, "generation_config.json")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")

_LIBRARIES = ("querywright", "torch", "transformers", "peft")

FILES = (MANIFEST, *_WEIGHTS, *_TOKENIZER, CARD, CURVE, README)
"""Every file that a rewriter may have."""


class Rewriter(Checksummed):
    """A rewriter whose every byte was checked; all but ``path`` and ``card`` stand in its manifest.

    Args:
        format: The form in which it was written.
        base: The model that it was trained from.
        techniques: Whose prompts it was trained on.
        recipe: How it was reinforced, or how else it was trained.
        created: Day, ISO 8601.
        max_chars: Characters of a text that no schema limits, where it runs in this process.
        max_items: Items of a list that no schema limits, there as well.
        versions: Of querywright and the libraries that trained it.
        files: SHA-256 of its files.
        path: Its folder.
        card: What is known of it: data, settings, results.
    """

    format: Literal[2] = 2
    base: RewriterBase
    techniques: tuple[str, ...]
    recipe: str
    created: str
    max_chars: int
    max_items: int
    versions: dict[str, str]
    files: dict[str, str]
    path: Path = Field(default=Path(), exclude=True)
    card: dict[str, Any] = Field(default_factory=dict, exclude=True)

    @field_validator("files")
    @classmethod
    def _check_files(cls, files: dict[str, str]) -> dict[str, str]:
        given = set(files)
        if not given < set(FILES):
            raise ValueError(f"{min(given - set(FILES))!r} is no file of a rewriter")
        is_lora, is_full = {ADAPTER, ADAPTER_CONFIG} <= given, {MODEL, MODEL_CONFIG} <= given
        if is_lora == is_full or not {CARD, README, CURVE} <= given:
            raise ValueError("it must name a card, a README, a curve, and either an adapter or a model")
        return files

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def checksum(self) -> str:
        """SHA-256 of what the manifest says."""
        return json_digest(self.model_dump(mode="json"))

    @property
    def identity(self) -> str:
        """Tells rewriters, and states of one, apart."""
        return f"rewriter:{self.name}@{self.checksum[:12]}"

    @property
    def form(self) -> Literal["lora", "full"]:
        """Whether it is an adapter or a whole model."""
        return "full" if MODEL in self.files else "lora"

    @property
    def adapter_gguf(self) -> Path | None:
        """The adapter for llama.cpp, where there is one."""
        return self.path / ADAPTER_GGUF if ADAPTER_GGUF in self.files else None

    @property
    def settings(self) -> EmbeddedSettings:
        """How it runs in this process: with the limits of texts that it was trained with."""
        return EmbeddedSettings(max_chars=self.max_chars, max_items=self.max_items)

    def check_same(self) -> None:
        """Check its files once more, before a model is made of them.

        Raises:
            LMModelError: It is no longer the one that was read.
        """
        try:
            same = read_rewriter(self.path).checksum == self.checksum
        except (OSError, ArtifactError):
            same = False
        if not same:
            raise LMModelError(f"{self.identity} was replaced since it was opened; open it again")


def write_rewriter(
    path: str | Path,
    weights: Path,
    *,
    base: RewriterBase,
    techniques: Sequence[str],
    recipe: str,
    created: str,
    card: Mapping[str, Any],
    readme: str,
    curve: Sequence[Mapping[str, Any]] = (),
    max_chars: int = 240,
    max_items: int = 5,
) -> Rewriter:
    """Write a rewriter; an older one at the same place is replaced whole or not at all.

    Args:
        path: The rewriter's folder; its parent is made when missing.
        weights: The folder that ``save_weights`` wrote.
        base: The model that it was trained from, as ``describe_base`` gives it.
        techniques: Whose prompts it was trained on.
        recipe: How it was trained.
        created: Day, ISO 8601.
        card: What is known of it, as plain data.
        readme: The text of README.md.
        curve: A mapping a line of the training's curve.
        max_chars: Characters of a text that no schema limits, where it runs in this process.
        max_items: Items of a list that no schema limits, there as well.

    Returns:
        The rewriter, read again and checked.

    Raises:
        ArtifactError: The card or curve is no JSON, the weights are missing, the folder holds other files, or it
            cannot be written; what stood there stays.
        InputError: llama.cpp has no form for the adapter, though its base is the embedded model.
    """
    target = Path(path).expanduser().absolute()
    try:
        texts = {
            CARD: json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
            README: readme,
            CURVE: "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in curve),
        }
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"the card or curve of a rewriter must be plain data, but: {error}") from error

    def fill(folder: Path) -> None:
        _copy_weights(weights, folder, base)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        Rewriter(
            base=base,
            techniques=tuple(sorted(techniques)),
            recipe=recipe,
            created=created,
            max_chars=max_chars,
            max_items=max_items,
            versions={name: version(name) for name in _LIBRARIES if find_spec(name)},
            files=file_digests(folder, FILES),
        ).write(folder / MANIFEST)

    try:
        replace_folder(target, fill, check=check_target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ArtifactError(
            f"the rewriter {target.name!r} could not be written: {reason}; nothing at that place was changed. "
            "Give another folder, or make room"
        ) from error
    return read_rewriter(target)


def read_rewriter(path: str | Path) -> Rewriter:
    """Read a rewriter and check every byte of it. Nothing is written.

    Raises:
        ArtifactError: It is missing, incomplete, too large, edited, or not of a form that this version reads.
    """
    target = Path(path).expanduser().absolute()
    folder, name = place_of(target), target.name
    if not (folder / MANIFEST).exists():
        raise ArtifactError(
            f"there is no rewriter at {name!r}; give the folder that querywright rewriter train wrote (--out)"
        )
    for entry in folder.iterdir():
        if not stat.S_ISREG(entry.lstat().st_mode):
            raise ArtifactError(
                f"{entry.name} of the rewriter {name!r} is not a plain file; copy the whole folder again"
            )
    try:
        rewriter = Rewriter.from_bytes((folder / MANIFEST).read_bytes())
    except ValueError as error:
        raise ArtifactError(
            f"{MANIFEST} of the rewriter {name!r} cannot be read: {error}; copy the whole folder again, or install the "
            "version of querywright that wrote it"
        ) from error
    found = file_digests(folder, (entry.name for entry in folder.iterdir() if entry.name != MANIFEST))
    changed = sorted(set(found.items()) ^ set(rewriter.files.items()))
    if changed:
        file = changed[0][0]
        what = "was changed after it was written" if file in found else "is missing"
        what = what if file in rewriter.files else "is none of its files"
        raise ArtifactError(f"{file} of the rewriter {name!r} {what}; copy the whole folder again")
    return rewriter.model_copy(update={"path": folder, "card": read_json(folder / CARD)})


def rewriter_of(lm: Any) -> Rewriter | None:
    """The trained rewriter that an LM is, as it was when it was opened; None where it is another LM."""
    found = getattr(getattr(getattr(lm, "engine", None), "inner", None), "rewriter", None)
    return found if isinstance(found, Rewriter) else None


def check_target(path: str | Path) -> None:
    """Check that a rewriter may be written there: nothing is there, an empty folder, or an older rewriter.

    Raises:
        ArtifactError: It is a file, or holds what would be lost.
    """
    target = Path(path).expanduser().absolute()
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ArtifactError(f"{target.name!r} is a file or a link, but a rewriter is a folder; give another folder")
    present = {entry.name for entry in target.iterdir()} if target.exists() else set()
    others = sorted(present - set(FILES if MANIFEST in present else ()))
    if others:
        raise ArtifactError(
            f"{target.name!r} holds files that are not of a rewriter, such as {others[0]!r}; they would be lost. "
            "Give another folder"
        )


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of a rewriter.

    Raises:
        ArtifactError: It is no JSON object.
    """
    try:
        return dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        told = f"{file.name} of the rewriter {file.parent.name!r}"
        raise ArtifactError(f"{told} is no JSON object: {error}; train it again") from error


def _copy_weights(weights: Path, folder: Path, base: RewriterBase) -> None:
    """Only what a rewriter has."""
    found = {file.name for file in (weights.iterdir() if weights.is_dir() else ())}
    if not found & {ADAPTER, MODEL}:
        raise ArtifactError(f"there are no weights in {weights.name!r}; save_weights writes them")
    # The embedded model comes with its tokenizer; a whole model stands alone, whatever it was made from.
    needs_base = ADAPTER in found and base.kind == "embedded"
    for name in sorted(found & {*_WEIGHTS, *(() if needs_base else _TOKENIZER)}):
        shutil.copyfile(weights / name, folder / name)
    if needs_base:
        write_lora_gguf(folder, folder / ADAPTER_GGUF, packaged_file())
