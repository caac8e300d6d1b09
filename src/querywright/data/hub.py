"""Read datasets from the Hugging Face Hub, by their Hub name or a short name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from querywright.data.tables import Kind, Row
from querywright.errors import DataError


class Recipe(NamedTuple):
    """Where to find a public dataset. :mod:`querywright.data.forms` recognizes a dataset's form by its columns.

    Args:
        dataset: Name on the Hub.
        split: Default split: the test split, or a different split if the test split has no labels.
        configs: Configurations to read, one after another. Default: the only configuration.
        kinds: Kinds of rows that the dataset has. Default: questions.
    """

    dataset: str
    split: str
    configs: tuple[str | None, ...] = (None,)
    kinds: tuple[Kind, ...] = ("questions",)


RECIPES = {
    "medqa": Recipe("GBaker/MedQA-USMLE-4-options", "test"),
    "medqa-5": Recipe("fzkuji/MedQA", "test", ("med_qa_en_source",)),
    "mmlu-med": Recipe(
        "cais/mmlu",
        "test",
        (
            *("anatomy", "clinical_knowledge", "college_biology"),
            *("college_medicine", "medical_genetics", "professional_medicine"),
        ),
    ),
    "medquad": Recipe("lavita/MedQuAD", "train", kinds=("questions", "passages")),
    "hotpotqa": Recipe("hotpotqa/hotpot_qa", "validation", ("distractor",), ("questions", "passages")),
    "webquestions": Recipe("stanfordnlp/web_questions", "test"),
    "popqa": Recipe("akariasai/PopQA", "test"),
    "ambignq": Recipe("sewon/ambig_qa", "validation", ("light",)),
}


def names_of(kind: Kind) -> str:
    """Return the short names of the datasets that have rows of this kind: questions or passages."""
    return ", ".join(name for name, recipe in RECIPES.items() if kind in recipe.kinds)


def dataset_rows(name: str, config: str | None, *, kind: Kind, split: str | None) -> Iterator[Row]:
    """Yield the rows of a dataset in :data:`RECIPES`, on the Hub, or in a folder written by ``save_to_disk``.

    If no configuration or split is given, the dataset must have only one.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        yield from _config_rows(name, config, split)
        return
    if kind not in recipe.kinds:
        raise DataError(
            f"hf:{name} ({recipe.dataset}) contains {' and '.join(recipe.kinds)} but no {kind}; use a dataset with "
            f"{kind} ({names_of(kind)}), or pass a file"
        )
    for part in recipe.configs if config is None else (config,):
        yield from _config_rows(recipe.dataset, part, split or recipe.split)


def _config_rows(name: str, config: str | None, split: str | None) -> Iterator[Row]:
    import datasets
    from datasets.exceptions import DatasetsError

    is_saved_split = (Path(name) / "state.json").is_file()
    try:
        if is_saved_split:
            found: Any = datasets.load_from_disk(name).with_format(None)
        else:
            found = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, DatasetsError) as error:
        raise DataError(
            f"dataset {name!r} (config {config!r}, split {split!r}) cannot be loaded: {error}. {_remedy(error)}"
        ) from error
    if isinstance(found, datasets.DatasetDict):
        if len(found) != 1:
            raise DataError(f"dataset {name!r} has the splits {sorted(found)}; choose one with split=")
        ((_, found),) = found.items()
    if is_saved_split and split not in (None, str(found.split)):
        raise DataError(f"split={split!r}: {name} has only one split ({found.split or 'unnamed'}); omit split=")
    shown = name if config is None else f"{name}:{config}"
    shown += "" if found.split is None else f" ({found.split})"
    for number, values in enumerate(found, start=1):
        yield Row(f"{shown} row {number}", values)


def _remedy(error: Exception) -> str:
    if "script" in str(error):
        return (
            "Loading scripts are not run, because they are programs; download the Parquet files from the dataset's "
            "branch refs/convert/parquet, and pass the path of a file"
        )
    return (
        "If this machine has no network access, save the dataset as a .jsonl, .csv, or .parquet file on a different "
        "machine, and pass the path of that file"
    )
