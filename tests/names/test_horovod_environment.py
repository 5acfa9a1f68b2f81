"""Checks that each environment variable of Horovod is a setting of this library, or is documented as unused."""

from __future__ import annotations

import json
from pathlib import Path

from perseus_like import _core

DOCUMENTED = json.loads((Path(__file__).parents[1] / "data" / "horovod_environment.json").read_text())

# Only Horovod's launchers read these variables: for elastic jobs, for Spark, and the key of Horovod's remote calls.
OF_LAUNCHERS = {
    *("HOROVOD_ELASTIC_TIMEOUT", "_HOROVOD_SECRET_KEY"),
    *("HOROVOD_SPARK_PYTHONPATH", "HOROVOD_SPARK_START_TIMEOUT", "HOROVOD_SPARK_WORK_DIR"),
}


def test_every_documented_variable_is_understood_or_explained() -> None:
    understood = {horovod for _, horovod, _, _ in _core.settings_table() if horovod}
    unused = {name for name, _ in _core.unused_settings()}
    assert not understood & unused
    assert understood | unused <= {*DOCUMENTED["runtime"], *DOCUMENTED["launcher"]}
    assert set(DOCUMENTED["runtime"]) == (understood | unused) - set(DOCUMENTED["launcher"])
    assert set(DOCUMENTED["launcher"]) - understood == OF_LAUNCHERS


def test_names_with_perseus_and_horovod_correspond() -> None:
    for name, horovod, _, meaning in _core.settings_table():
        assert name.startswith("PERSEUS_")
        assert meaning.endswith(".")
        assert horovod in ("", name.replace("PERSEUS_", "HOROVOD_"), "HOROVOD_CPU_OPERATIONS")
