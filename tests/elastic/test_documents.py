"""Checks that the script in docs/elastic.md runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.job import needs, run_to_end, succeeded

from .job import LAUNCHER

PAGE = Path(__file__).parent.parent.parent / "docs/elastic.md"


@pytest.mark.slow
def test_the_script_of_the_page_runs(tmp_path: Path) -> None:
    needs("torch")
    text = PAGE.read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (discovery,) = re.findall(r"^```sh\n(#!/bin/sh\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (options,) = re.findall(r"^perseusrun (.*)$", text, re.MULTILINE)
    (tmp_path / "train.py").write_text(program)
    script = tmp_path / "hosts.sh"
    script.write_text(discovery)
    script.chmod(0o755)
    command = [*LAUNCHER, *options.split()]
    job = succeeded(run_to_end(command, tmp_path))
    for epoch in range(3):
        assert f"epoch {epoch} with 2 workers" in job.stdout
