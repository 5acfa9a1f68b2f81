"""Checks for which programs perseusrun sets the variables of torch.distributed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perseus_like.launch.torch_program import RUNNER, with_runner

WITH = {
    "trainer": "from transformers import AutoModel, Trainer\nTrainer(AutoModel())",
    "attribute": "import transformers\ntransformers.Seq2SeqTrainer()",
    "accelerate": "import torch\nfrom accelerate import Accelerator",
}
WITHOUT = {
    "models only": "from transformers import AutoModel\nAutoModel()",
    "plain": "import torch\nprint(torch.ones(1))",
    "own world": "import accelerate\nimport torch.distributed as dist\ndist.init_process_group('gloo')",
    "horovod": "import horovod.torch as hvd\nfrom transformers import Trainer",
    "deepspeed": "import deepspeed\nfrom accelerate import Accelerator",
    "no python": "this is no Python",
}


@pytest.mark.parametrize("name", [*WITH, *WITHOUT])
def test_scripts(name: str, tmp_path: Path) -> None:
    script = str(tmp_path / "train.py")
    Path(script).write_text({**WITH, **WITHOUT}[name])
    for python in (["python"], ["/usr/bin/python3.11", "-u"]):
        found = with_runner([*python, script, "--lr", "1"])
        assert found == ([*python, *RUNNER, script, "--lr", "1"] if name in WITH else None)
        assert with_runner([*python, script], always=True) == [*python, *RUNNER, script]
        assert with_runner([*python, *RUNNER, script], always=True) is None


def test_other_commands(tmp_path: Path) -> None:
    for command in ([], ["python"], ["bash", "train.sh"], ["python", "-c", "import accelerate"], ["python", "no.py"]):
        assert with_runner(command) is None
    assert with_runner(["bash", "train.sh"], always=True) is None
    assert with_runner(["python", "-m", "train"], always=True) == ["python", *RUNNER, "-m", "train"]
