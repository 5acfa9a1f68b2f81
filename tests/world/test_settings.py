"""What settings from the environment do, under Horovod's names where it has one."""

from __future__ import annotations

import re

from .conftest import Ranks


def test_horovods_names(ranks: Ranks) -> None:
    world = ranks(
        2,
        """
        from pathlib import Path
        hvd.init()
        def cores_of_the_engine():
            for task in Path("/proc/self/task").iterdir():
                if (task / "comm").read_text() == "perseus-lane\\n":
                    return (task / "status").read_text().split("Cpus_allowed_list:\\t")[1].split("\\n")[0]

        while cores_of_the_engine() != "0":  # the thread has hardly begun
            os.sched_yield()
        assert hvd.allreduce(1.0, op=hvd.Sum) == 2
        """,
        HOROVOD_THREAD_AFFINITY="0,0",
        HOROVOD_LOG_LEVEL="INFO",
        HOROVOD_LOG_HIDE_TIME="0",
        HOROVOD_CYCLE_TIME="5",
        HOROVOD_TORUS_ALLREDUCE="",
        HOROVOD_DYNAMIC_PROCESS_SETS="1",
    )
    assert world.returncode == 0, world.stderr
    lines = [line for line in world.stderr.splitlines() if "[perseus rank" in line]
    assert all(re.match(r"\[\d\]<stderr>:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6} \[perseus rank", line) for line in lines)
    assert sum("info: local: 2 ranks" in line for line in lines) == 2
    remarks = [line.split("] ")[1] for line in lines if "no effect" in line]
    assert len(remarks) == 1
    assert remarks[0].startswith("warning: HOROVOD_CYCLE_TIME has no effect: There is no cycle")


def test_values_that_make_no_sense(ranks: Ranks) -> None:
    world = ranks(
        1,
        """
        for name, value in {
            "PERSEUS_THREAD_AFFINITY": "0,x", "HOROVOD_THREAD_AFFINITY": "-1", "PERSEUS_FUSION_THRESHOLD": "64MB",
            "HOROVOD_CPU_OPERATIONS": "smoke signals", "HOROVOD_MPI_THREADS_DISABLE": "maybe",
        }.items():
            os.environ[name] = value
            try:
                hvd.init()
            except ValueError as error:
                assert value in str(error) and "PERSEUS_" in str(error), error
            else:
                raise AssertionError(name)
            del os.environ[name]
        os.environ["PERSEUS_THREAD_AFFINITY"] = "1023"
        hvd.init()
        assert hvd.allreduce(1.0) == 1
        """,
    )
    assert world.returncode == 0, world.stderr
    assert "PERSEUS_THREAD_AFFINITY: the engine's thread cannot be bound to core 1023" in world.stderr
