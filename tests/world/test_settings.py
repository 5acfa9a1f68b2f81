"""Checks the effects of settings in the environment, with Horovod's names for those that have one."""

from __future__ import annotations

import re

import pytest

from .conftest import Ranks


def test_settings_with_horovods_names(ranks: Ranks) -> None:
    world = ranks(
        2,
        """
        import contextlib
        from pathlib import Path
        hvd.init()
        def cores_of_the_engine():
            for task in Path("/proc/self/task").iterdir():
                with contextlib.suppress(OSError):  # the thread has ended
                    if (task / "comm").read_text() == "perseus-engine\\n":
                        return (task / "status").read_text().split("Cpus_allowed_list:\\t")[1].split("\\n")[0]

        while cores_of_the_engine() != "0":  # the thread has just started
            os.sched_yield()
        assert hvd.allreduce(1.0, op=hvd.Sum) == 2
        """,
        HOROVOD_THREAD_AFFINITY="0,0",
        HOROVOD_LOG_LEVEL="INFO",
        HOROVOD_LOG_HIDE_TIME="0",
        HOROVOD_CYCLE_TIME="5",
        HOROVOD_TORUS_ALLREDUCE="",
        HOROVOD_DYNAMIC_PROCESS_SETS="1",
    ).succeeded()
    lines = [line for line in world.stderr.splitlines() if "[perseus rank" in line]
    assert all(re.match(r"\[\d\]<stderr>:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6} \[perseus rank", line) for line in lines)
    assert sum("info: local: 2 ranks" in line for line in lines) == 2
    remarks = [line.split("] ")[1] for line in lines if "no effect" in line]
    assert len(remarks) == 1
    assert remarks[0].startswith("warning: HOROVOD_CYCLE_TIME has no effect: There is no cycle")


def test_wrong_values_are_refused(ranks: Ranks) -> None:
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
                assert value in str(error) and name in str(error), error
            else:
                raise AssertionError(name)
            del os.environ[name]
        os.environ["PERSEUS_THREAD_AFFINITY"] = "1023"
        hvd.init()
        assert hvd.allreduce(1.0) == 1
        """,
    ).succeeded()
    assert "PERSEUS_THREAD_AFFINITY: the engine's thread cannot be bound to core 1023" in world.stderr


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("HOROVOD_FUSION_THRESHOLD", ("0", "67108864")),
        ("PERSEUS_ALLREDUCE_DTYPE", ("1", "3")),
        ("HOROVOD_CACHE_CAPACITY", ("0", "1024")),
        ("PERSEUS_ALLREDUCE_NANCHECK", ("2", "0")),
        ("PERSEUS_CPU_TRANSPORT", ("", "mpi")),
        ("PERSEUS_NCCL_REGISTER", ("0", "1")),
    ],
)
def test_ranks_with_different_values(name: str, values: tuple[str, str], ranks: Ranks) -> None:
    """An mpirun may pass variables to some hosts only. The values of rank 0 are used, as in Horovod."""
    world = ranks(
        3,
        f"""
        os.environ["{name}"] = {values}[int(os.environ["PERSEUS_RANK"]) == 1]
        hvd.init()
        for step in range(3):
            handles = [
                hvd.allreduce_async(np.full(10 + i, float(hvd.rank())), name=f"t{{i}}", op=hvd.Sum) for i in range(30)
            ]
            for i, handle in enumerate(handles):
                np.testing.assert_array_equal(hvd.synchronize(handle), np.full(10 + i, 3.0))
        """,
    ).succeeded()
    text = "settings differ from rank 0's: "
    assert world.stderr.count(text) == 1
    assert f"{text}{name.replace('HOROVOD', 'PERSEUS')} (rank 1)." in world.stderr


def test_functions_about_available_parts(ranks: Ranks) -> None:
    """The functions return the settings that are in effect."""
    ranks(
        2,
        """
        import perseus_like as hvd
        import perseus_like.numpy
        from perseus_like.common import util
        assert not hvd.mpi_enabled() and not hvd.gloo_enabled()
        hvd.init()
        assert perseus_like.numpy.allreduce(1.0) == 1
        assert hvd.mpi_built() and util.mpi_built()  # a job under mpirun would use it
        assert not hvd.mpi_enabled()  # this job does not use it
        assert hvd.gloo_enabled() and hvd.gloo_built() and util.gloo_built()  # Horovod uses Gloo if there is no MPI
        try:
            hvd.mpi_threads_supported()
        except ValueError as error:
            assert "runs on MPI" in str(error)
        else:
            raise AssertionError("no MPI is in use")
        assert not any([hvd.ddl_built(), util.ddl_built()])
        description = __import__("perseus_like").session.session.core.description()
        assert hvd.ccl_built() == util.ccl_built() and ("ccl" in description) <= hvd.ccl_built()
        assert hvd.nccl_built() == util.nccl_built() and isinstance(hvd.nccl_built(), int)
        assert (hvd.nccl_built() > 0) <= bool(hvd.cuda_built() or hvd.rocm_built())
        """,
    ).succeeded()


def test_helpers_of_horovod(ranks: Ranks) -> None:
    ranks(
        1,
        """
        from perseus_like.common import basics, util
        with util.env(PERSEUS_A="1", PERSEUS_B=None):
            assert os.environ["PERSEUS_A"] == "1" and "PERSEUS_B" not in os.environ
            with util.env(PERSEUS_A="2"):
                assert os.environ["PERSEUS_A"] == "2"
            assert os.environ["PERSEUS_A"] == "1"
        assert "PERSEUS_A" not in os.environ
        assert util.is_iterable([]) and util.is_iterable("") and not util.is_iterable(3)
        assert util.extension_available("numpy") and not util.extension_available("spark")
        core = __import__("perseus_like._core")._core.__file__
        assert util.get_extension_full_path(core, "_core") == os.path.abspath(core)
        assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]] and util.split_list([1], 2) == [[1], []]
        assert [util.num_rank_is_power_2(count) for count in (0, 1, 3, 4)] == [False, True, False, True]
        chosen = util.get_average_backwards_compatibility_fun(hvd)
        assert chosen(None, True) == hvd.Average and chosen(None, False) == hvd.Sum == chosen(hvd.Sum, None)
        from perseus_like.runner.common.util.env import get_env_rank_and_size
        from perseus_like.runner.util.threads import in_thread
        assert get_env_rank_and_size() == (0, 1) and basics.HorovodBasics.Sum == hvd.Sum
        results = []
        in_thread(results.append, ("results",)).join()
        in_thread(int, ("no number",), silent=True).join()
        assert results == ["results"]
        object_of_horovod = basics.HorovodBasics(__file__, "mpi_lib_v2")
        object_of_horovod.init()
        assert (object_of_horovod.rank(), object_of_horovod.size()) == (0, 1)
        assert object_of_horovod.is_initialized() and hvd.is_initialized()
        object_of_horovod.shutdown()
        """,
    ).succeeded()
