"""Arguments and variables of older instructions for Hugging Face's Trainer, by what replaces them today.

Intel's and Optimum's pages start training scripts with arguments that transformers has removed since, and with
variables for pinning that only Intel's MPI and Intel's OpenMP read.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

TRUE = ("true", "yes", "y", "t", "1")
BOOLEAN = (*TRUE, "false", "no", "n", "f", "0")


def trainer_arguments() -> str | None:
    """Returns the source of the installed transformers' TrainingArguments, which says what arguments there are."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "training_args.py"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def uses_trainer(script: str) -> bool:
    """Returns whether a program takes the arguments of transformers' Trainer."""
    return re.search(r"TrainingArguments\b", script) is not None


def translated(arguments: Sequence[str], script: str, trainer: str) -> tuple[list[str], list[str]]:
    """Returns the arguments for today's Trainer, and a note for each one that changed.

    `script` is the program's source, and `trainer` that of TrainingArguments. An argument stays if either has it.
    """
    kept: list[str] = []
    notes: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        is_old = name.startswith("--") and _is_old(name[2:], value or (words[0] if words else ""), script, trainer)
        if not is_old:
            kept.append(word)
            continue
        if not equals and words and _is_value(name, words[0]):
            value = words.pop(0)
        replaced, note = _replacement(name, value)
        kept += replaced
        notes.append(f"{' '.join(filter(None, (name, value)))}: {note}")
    return kept, notes


def _is_old(name: str, value: str, script: str, trainer: str) -> bool:
    if name in ("xpu_backend", "no_cuda", "overwrite_output_dir"):
        return not re.search(rf"\b{name}\b", script) and not re.search(rf"^    {name}:", trainer, re.MULTILINE)
    choices = re.search(r'"choices": \[("nccl"[^\]]*)\]', trainer)
    return name == "ddp_backend" and value == "ccl" and choices is not None and '"ccl"' not in choices[1]


def _is_value(name: str, word: str) -> bool:
    if name in ("--xpu_backend", "--ddp_backend"):
        return not word.startswith("-")
    return word.lower() in BOOLEAN


def _replacement(name: str, value: str) -> tuple[list[str], str]:
    if name in ("--xpu_backend", "--ddp_backend"):
        return [], "transformers has removed it; the backend is perseus, whose process group is there already"
    if name == "--no_cuda":
        if value and value.lower() not in TRUE:
            return [], "transformers has removed it, and false is the default of --use_cpu"
        return ["--use_cpu"], "transformers calls it --use_cpu now"
    return [], "transformers has removed it; a training continues only with --resume_from_checkpoint"


def pinning_notes(variables: Mapping[str, str], loaded: str) -> list[str]:
    """Returns a note for each variable for pinning that has no effect here. `loaded` lists this process's libraries."""
    notes = []
    under_intel_mpi = any(name.startswith(("I_MPI_HYDRA_", "I_MPI_MPIRUN")) for name in variables)
    domains = [name for name in ("I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST") if name in variables]
    if domains and not under_intel_mpi:
        notes.append(
            f"{domains[0]} has no effect, because only Intel MPI's mpirun reads it; use `mpirun -bind-to core:N` of "
            "MPICH, `mpirun --map-by slot:PE=N --bind-to core` of Open MPI, or Intel MPI's mpirun"
        )
    affinity = [name for name in ("KMP_AFFINITY", "KMP_BLOCKTIME") if name in variables]
    if affinity and "libiomp5" not in loaded:
        notes.append(
            f"{affinity[0]} has no effect, because this torch uses GNU's OpenMP; use OMP_PROC_BIND=close and "
            "OMP_PLACES=cores, or preload Intel's: LD_PRELOAD=…/libiomp5.so"
        )
    wanted = re.split(r"[ :]+", variables.get("LD_PRELOAD", ""))
    lost = [name for name in wanted if "tcmalloc" in name and Path(name).name.split(".so")[0] not in loaded]
    if lost:
        notes.append(
            f"LD_PRELOAD={lost[0]} was not loaded, because the file is not there; on Debian and Ubuntu: apt install "
            "libtcmalloc-minimal4, which has libtcmalloc_minimal.so.4"
        )
    return notes
