"""Evaluating, compiling and saving programs."""

from __future__ import annotations

from querywright.optimize.artifacts.files import Artifact, Golden, Manifest, read_artifact, write_artifact
from querywright.optimize.artifacts.load import LoadedProgram, load
from querywright.optimize.evaluate import Evaluation, Row, evaluate, metrics_by_name
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.report import compiled_json, save_compiled
from querywright.optimize.search import Compiled, CompileSettings, compile_program

__all__ = [
    "Artifact",
    "CompileSettings",
    "Compiled",
    "Evaluation",
    "Golden",
    "LoadedProgram",
    "Manifest",
    "Row",
    "TooManyFailuresError",
    "compile_program",
    "compiled_json",
    "evaluate",
    "load",
    "metrics_by_name",
    "read_artifact",
    "save_compiled",
    "write_artifact",
]
