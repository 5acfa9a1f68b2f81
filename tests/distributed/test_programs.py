"""Runs whole programs: kinds of rendezvous, sessions that several groups share, and ranks that die."""

from __future__ import annotations

import importlib
import re
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from perseus_like.torch.compat.core import keeps_identity
from tests.job import Start, run_to_end


@pytest.mark.slow
def test_kinds_of_rendezvous_one_after_the_other(program: Start, tmp_path: Path) -> None:
    """One process can start groups by the launcher's variables, a file and a store, also beside init() and after it.

    The store gives the ranks in another order.
    """
    done = program(
        "perseusrun",
        2,
        f"""
        import perseus_like.torch as hvd
        from perseus_like.session import session
        rank = int(os.environ["PERSEUS_RANK"])
        def total():
            tensor = torch.ones(1) * (dist.get_rank() + 1)
            dist.all_reduce(tensor)
            return tensor.item()
        def through(how, **options):
            dist.init_process_group("perseus", **options)
            report(how, session.core.description().split(":")[0], dist.get_rank(), total())
            dist.destroy_process_group()
            report(hvd.is_initialized())
        through("env")
        through("file", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
        through("other", store=dist.FileStore("{tmp_path}/other", 2), rank=1 - rank, world_size=2)
        hvd.init()
        through("beside")
        report(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
        hvd.shutdown()
        through("env")
        """,
    ).succeeded()
    for rank in (0, 1):
        expected = ["env local 0 3.0", "False", "file local 0 3.0", "False", "other store 1 3.0", "False"]
        expected += ["beside local 0 3.0", "True", "2.0", "env local 0 3.0", "False"]
        if rank == 1:
            expected = [
                re.sub(r"(?<=[a-z] )[01](?= )", lambda found: str(1 - int(found[0])), line) for line in expected
            ]
        assert done.reports_of(rank).splitlines() == expected


RENDEZVOUS_BY_TCP = """
    dist.init_process_group(
        "{backend}", init_method="tcp://127.0.0.1:{port}", rank=int(os.environ["RANK"]), world_size=2,
        timeout=timedelta(seconds=200),
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    report(total.item())
    dist.destroy_process_group()
    """


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["perseus", "gloo"])
def test_another_port_than_torchruns(backend: str, program: Start) -> None:
    """Rank 0 listens at the port if torchrun's variable says that no agent does."""
    with socket.socket() as kept:
        # The kernel gives this port to no other process, except to a program that asks for it by its number.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        text = RENDEZVOUS_BY_TCP.format(backend=backend, port=kept.getsockname()[1])
        done = program("torchrun", 2, 'os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"\n' + textwrap.dedent(text))
    assert done.code == 0, done.stdout
    assert done.reports_of(0) == done.reports_of(1) == "2.0\n"


@pytest.mark.slow
@pytest.mark.skipif(
    hasattr(importlib.import_module("torch.distributed.rendezvous"), "_agent_store_serves"),
    reason="from torch 2.15 on, rank 0 listens itself at any port but that of torchrun's agent",
)
def test_another_port_at_which_a_store_listens_already(program: Start) -> None:
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    done = program("torchrun", 2, RENDEZVOUS_BY_TCP.format(backend="perseus", port=store.port)).succeeded()
    assert done.reports_of(0) == done.reports_of(1) == "2.0\n"
    assert store.num_keys() > 1


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_dead_peer_is_an_error(victim: int, program: Start) -> None:
    """The other rank gets the error before torchrun kills it after 30 s. The library promises 2 s."""
    done = program(
        "torchrun",
        2,
        f"""
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that torchrun does not end the rank before its error
        dist.init_process_group("perseus")
        try:
            dist.barrier()  # the other rank may still be in it when the victim dies
            if dist.get_rank() == {victim}:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            report(error)
        """,
    )
    assert done.code != 0
    assert f"rank {victim}" in done.reports_of(1 - victim), done.stdout


def test_ranks_that_do_not_join_at_the_start_are_named(program: Start) -> None:
    done = program(
        "torchrun",
        2,
        """
        if os.environ["RANK"] == "0":
            try:
                dist.init_process_group("perseus", timeout=timedelta(seconds=8))  # also for finding the store
            except RuntimeError as error:
                report(error)
        """,
    )
    assert "rank 1 did not come" in done.reports_of(0)


def test_import_torch_works_if_this_library_is_broken(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "perseus_like"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken')")
    gloo = f"init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1)"
    check = f"import sys; sys.path.insert(0, {str(broken.parent)!r}); import torch; torch.distributed.{gloo}"
    check += "; print('survived')"
    done: Any = run_to_end([sys.executable, "-c", check])
    assert done.stdout == "survived\n", done.stderr


@pytest.mark.slow
def test_ddp_with_detailed_debugging(program: Start) -> None:
    done = program(
        "torchrun",
        2,
        """
        dist.init_process_group("perseus")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        report("fine")
        dist.destroy_process_group()
        """,
        TORCH_DISTRIBUTED_DEBUG="DETAIL",
    ).succeeded()
    assert done.reports_of(0) == done.reports_of(1) == "fine\n"


@pytest.mark.slow
@pytest.mark.skipif(not keeps_identity(), reason=f"buckets do not move with torch {torch.__version__}")
def test_buckets_need_no_room_in_the_arena(program: Start) -> None:
    done = program(
        "perseusrun",
        2,
        """
        dist.init_process_group("perseus")
        model = torch.nn.Linear(2000, 2000, bias=False)
        torch.nn.init.ones_(model.weight)
        parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        for _ in range(5):
            parallel(torch.full((1, 2000), dist.get_rank() + 1.0)).sum().backward()
        gradient = model.weight.grad
        report(gradient.is_shared(), gradient.unique().tolist())
        dist.destroy_process_group()
        """,
        PERSEUS_ARENA_BYTES=str(16 << 20),
    ).succeeded()
    assert "private memory" not in done.stdout, done.stdout
    for rank in (0, 1):
        assert done.reports_of(rank) == "True [7.5]\n"


@pytest.mark.slow
@pytest.mark.parametrize("with_npu", [[], [1], [0, 1]])
def test_accelerate_is_kept_to_the_cpu_only_if_no_rank_has_an_accelerator(with_npu: list[int], program: Start) -> None:
    """ACCELERATE_USE_CPU is set only if no rank has an accelerator, of any kind.

    torch_npu registers its module as torch.npu.
    """
    done = program(
        "perseusrun",
        2,
        f"""
        from types import SimpleNamespace
        from perseus_like.torch.distributed.job_variables import export_world
        os.environ.pop("ACCELERATE_USE_CPU", None)
        if int(os.environ["PERSEUS_RANK"]) in {with_npu}:
            torch.npu = SimpleNamespace(is_available=lambda: True)
        dist.init_process_group("perseus")
        export_world()
        report(os.environ.get("ACCELERATE_USE_CPU"))
        """,
        CUDA_VISIBLE_DEVICES="",
    ).succeeded()
    assert done.reports_of(0) == done.reports_of(1) == ("None\n" if with_npu else "true\n")


@pytest.mark.slow
def test_a_warning_says_that_nan_checks_of_torch_have_no_effect(program: Start) -> None:
    done = program(
        "torchrun",
        2,
        """
        dist.init_process_group("perseus")
        dist.new_group([0, 1])
        dist.all_reduce(torch.full((2,), float("nan")))
        dist.destroy_process_group()
        """,
        TORCH_DIST_NAN_CHECK="1",
    ).succeeded()
    assert done.stdout.count("TORCH_DIST_NAN_CHECK has no effect") == 1
    assert "PERSEUS_ALLREDUCE_NANCHECK=2" in done.stdout


@pytest.mark.slow
def test_pipeline_stages_of_tensor_parallel_layers(program: Start) -> None:
    """The stages send AsyncCollectiveTensors, which torch's parallel layers return. The loss is that of one process."""
    pytest.importorskip("torch.distributed.pipelining", reason="torch before 2.6 lacks pipelines")
    done = program(
        "perseusrun",
        4,
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "tensor"))
        torch.manual_seed(1)
        layers = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)) for _ in range(2)]
        inputs, targets = torch.randn(4, 4), torch.randn(4, 4)
        whole = torch.nn.functional.mse_loss(layers[1](layers[0](inputs)), targets)
        place = mesh["pipeline"].get_local_rank()
        mine = parallelize_module(layers[place], mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        stage = PipelineStage(mine, place, 2, torch.device("cpu"), group=mesh["pipeline"].get_group())
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
        losses = []
        if place == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
            torch.testing.assert_close(torch.stack(losses).mean(), whole)
        report("done")
        dist.destroy_process_group()
        """,
        PERSEUS_AS_GLOO="1",
    ).succeeded()
    assert [done.reports_of(rank) for rank in range(4)] == ["done\n"] * 4


@pytest.mark.parametrize("recorded", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["record", "plain"])
def test_torchrun_names_the_rank_that_failed(recorded: bool, program: Start) -> None:
    """Rank 0 has only lost rank 1, whose process ends later than rank 0 could."""
    done = program(
        "torchrun",
        2,
        f"""
        import atexit
        from torch.distributed.elastic.multiprocessing.errors import record

        def main():
            if os.environ["RANK"] == "1":
                atexit.register(time.sleep, 2.0)  # runs after the session has ended
            dist.init_process_group("perseus")
            dist.barrier()
            if dist.get_rank() == 1:
                raise ValueError("the cause")
            dist.barrier()

        {"record(main)()" if recorded else "main()"}
        """,
    )
    assert done.code != 0
    cause = done.output.partition("Root Cause (first observed failure):")[2]
    assert re.search(r"rank +: 1 ", cause), done
