"""Arguments of Intel's and Optimum's pages, as today's transformers wants them."""

from __future__ import annotations

import pytest

from tests.job import needs

needs("torch")

from perseus_like.torch.old_arguments import pinning_notes, translated, uses_trainer  # noqa: E402

SCRIPT = "from transformers import Seq2SeqTrainingArguments"
TODAY = '    use_cpu: bool = field()\n    ddp_backend: str = field("choices": ["nccl", "gloo", "mpi"])\n'
BEFORE = '    no_cuda: bool\n    overwrite_output_dir: bool\n    xpu_backend: str\n    "choices": ["nccl", "ccl"]\n'


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ("--xpu_backend ccl", "", "--xpu_backend ccl: transformers has removed it; the backend is perseus"),
        ("--ddp_backend=ccl", "", "--ddp_backend ccl: transformers has removed it; the backend is perseus"),
        ("--no_cuda True", "--use_cpu", "--no_cuda True: transformers calls it --use_cpu now"),
        ("--no_cuda", "--use_cpu", "--no_cuda: transformers calls it --use_cpu now"),
        ("--no_cuda=false", "", "--no_cuda false: transformers has removed it, and false is the default"),
        (
            "--overwrite_output_dir",
            "",
            "--overwrite_output_dir: transformers has removed it; a training continues only",
        ),
    ],
)
def test_old_arguments_are_translated_with_a_note(old: str, new: str, note: str) -> None:
    arguments, notes = translated(["--lr", "1", *old.split(), "--seed", "3"], SCRIPT, TODAY)
    assert arguments == ["--lr", "1", *new.split(), "--seed", "3"]
    assert len(notes) == 1
    assert notes[0].startswith(note)


def test_arguments_that_are_there_stay() -> None:
    """An older transformers has them, and so may a script of its own."""
    old = ["--no_cuda", "True", "--overwrite_output_dir", "--xpu_backend", "ccl", "--ddp_backend", "ccl"]
    assert translated(old, SCRIPT, BEFORE) == (old, [])
    assert translated(["--no_cuda"], SCRIPT + "\nno_cuda = False", TODAY) == (["--no_cuda"], [])
    assert translated(["--ddp_backend", "gloo"], SCRIPT, TODAY) == (["--ddp_backend", "gloo"], [])
    assert uses_trainer(SCRIPT)
    assert not uses_trainer("import torch")


def test_pinning_that_has_no_effect_is_noted() -> None:
    notes = pinning_notes({"I_MPI_PIN_DOMAIN": "omp", "KMP_AFFINITY": "compact", "LD_PRELOAD": "/x/libtcmalloc.so"}, "")
    assert [note.partition(" ")[0] for note in notes] == [
        *("I_MPI_PIN_DOMAIN", "KMP_AFFINITY", "LD_PRELOAD=/x/libtcmalloc.so"),
    ]
    assert "mpirun -bind-to core:N" in notes[0]
    assert "OMP_PROC_BIND=close" in notes[1]
    works = {"I_MPI_PIN_DOMAIN": "omp", "I_MPI_HYDRA_UUID": "1", "KMP_AFFINITY": "compact"}
    works["LD_PRELOAD"] = "/x/libiomp5.so:/x/libtcmalloc.so"
    assert pinning_notes(works, "/x/libiomp5.so\n/x/libtcmalloc.so\n") == []
    assert pinning_notes({}, "") == []
