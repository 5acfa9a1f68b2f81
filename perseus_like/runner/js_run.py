"""horovod.runner.js_run. perseusrun does not start jobs with jsrun."""

from __future__ import annotations

import shutil


def is_jsrun_installed() -> bool:
    """Returns whether LSF's jsrun is in PATH."""
    return shutil.which("jsrun") is not None


__all__ = ["is_jsrun_installed"]
