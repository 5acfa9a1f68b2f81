"""Checks that impossible values of settings are refused, with the name and the value in the error."""

import sys
from typing import Any

from tests.job import run_to_end, succeeded

SETTINGS = [
    "PERSEUS_FUSION_THRESHOLD",
    "PERSEUS_ALLREDUCE_FUSION",
    "PERSEUS_ALLREDUCE_STREAMS",
    "PERSEUS_NCCL_STREAMS",
    "PERSEUS_CACHE_CAPACITY",
    "PERSEUS_LINGER_US",
    "PERSEUS_SPIN_US",
    "PERSEUS_STALL_CHECK_TIME_SECONDS",
    "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS",
    "PERSEUS_START_TIMEOUT",
    "PERSEUS_HEARTBEAT_TIMEOUT",
    "PERSEUS_ARENA_BYTES",
    "PERSEUS_CHUNK_BYTES",
    "PERSEUS_AUTOTUNE_WARMUP_SAMPLES",
]
PROGRAM = """
import os, sys
import perseus_like.numpy as hvd
for name in sys.argv[1:]:
    for value in ("nan", "inf", "1e30", "-1", "-inf", "1e400", "much"):
        os.environ[name] = value
        try:
            hvd.init()
        except ValueError as error:
            assert f"{name}='{value}'" in str(error) and "unset it or correct it" in str(error), error
        else:
            raise AssertionError(f"{name}={value} was accepted")
    del os.environ[name]
hvd.init()
"""


def test_impossible_numbers_are_refused() -> None:
    succeeded(run_to_end([sys.executable, "-c", PROGRAM, *SETTINGS]))


def test_an_unknown_log_level_is_refused() -> None:
    program = """
import os
import perseus_like.numpy as hvd
os.environ["PERSEUS_LOG_LEVEL"] = "silly"
try:
    hvd.init()
except ValueError as error:
    assert "PERSEUS_LOG_LEVEL='silly'" in str(error) and "trace, debug, info" in str(error), error
else:
    raise AssertionError("the level was accepted")
for level in ("", "WARNING", "fatal"):
    os.environ["PERSEUS_LOG_LEVEL"] = level
    hvd.init()
    hvd.shutdown()
"""
    succeeded(run_to_end([sys.executable, "-c", program]))


def test_the_error_has_the_variables_name_that_the_user_set() -> None:
    wrong = {
        "HOROVOD_FUSION_THRESHOLD": "abc",
        "HOROVOD_LOG_LEVEL": "silly",
        "HOROVOD_THREAD_AFFINITY": "a",
        "HOROVOD_CPU_OPERATIONS": "pigeons",
    }
    for name, value in wrong.items():
        variables: dict[str, Any] = {name: value}
        ended = run_to_end([sys.executable, "-c", "import perseus_like.numpy as hvd; hvd.init()"], **variables)
        assert f"ValueError: {name}='{value}' is " in ended.stderr
