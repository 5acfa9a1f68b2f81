"""Runs programs as users of torch write them, with tensors on a simulated device (see pretended_device.py).

NCCL between processes cannot be simulated: the tensors of several ranks are copied through pinned host memory.
"""

from __future__ import annotations

import importlib.util
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WORLD = HERE.parent / "world"

Done = subprocess.CompletedProcess[str]
World = Callable[..., Done]
TestsPass = Callable[..., None]


@pytest.fixture
def program(world: World, tmp_path: Path) -> World:
    """Returns a function that runs the text of a program on all ranks. Its CPU tensors seem to be on the device."""

    def run(size: int, text: str, **options: str) -> Done:
        file = tmp_path / "program.py"
        head = "import pretended_device, torch\nimport perseus_like.torch as hvd\nhvd.init()\n"
        file.write_text(head + textwrap.dedent(text))
        return world(size, str(file), **options)

    return run


def test_tests_of_torch_tensors_pass_on_the_device(tests_pass: TestsPass) -> None:
    """The unchanged tests of torch tensors on the CPU pass with tensors on the device."""
    files = ["test_verbs.py", "test_optimizer.py", "test_join.py"]
    tests_pass(2, [WORLD / "in_world/torch" / file for file in files], at_least=51, plugin="pretended_device")


def test_copies_through_host_memory_are_warned_of_once(program: World) -> None:
    done = program(
        2, "for step in range(3): assert hvd.allreduce(torch.ones(4), op=hvd.Sum, name='x').tolist() == [2] * 4"
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("through host memory") == 1, done.stdout
    assert "PERSEUS_NCCL_LIBRARY" in done.stdout


@pytest.mark.slow
def test_one_name_on_the_host_and_on_a_device(program: World) -> None:
    """It is an error if one rank passes a tensor on the CPU and the other one a tensor on its device."""
    done = program(
        2,
        """
        import numpy as np, perseus_like.numpy as numpy_hvd
        try:
            if hvd.rank() == 0:
                numpy_hvd.allreduce(np.ones(4, np.float32), name="x")
            else:
                hvd.allreduce(torch.ones(4), name="x")
        except hvd.HorovodInternalError as error:
            print("ERROR", error, flush=True)
        """,
    )
    text = (
        "ERROR allreduce 'x': rank 0 has it on the host, rank 1 has it on an accelerator; all ranks must pass the same"
    )
    assert done.stdout.count(text) == 2, done.stdout


def test_a_tensor_on_another_device_than_the_process(program: World) -> None:
    done = program(
        1,
        """
        from perseus_like.session import session
        hvd.allreduce(torch.ones(4), name="x")
        pretended_device.device = 1
        try:
            hvd.allreduce(torch.ones(4), name="y")
        except ValueError as error:
            print("ERROR", error, flush=True)
        """,
    )
    assert "ERROR allreduce 'y': the tensor is on device 1, but rank 0 communicates on CUDA device 0" in done.stdout
    assert "local_rank()" in done.stdout


def test_without_a_driver(world: World, program: World, tmp_path: Path) -> None:
    done = program(
        1,
        """
        from perseus_like.errors import UnavailableError
        try:
            hvd.allreduce(torch.ones(4), name="x")
        except UnavailableError as error:
            print("ERROR", error, flush=True)
        """,
        driver=tmp_path,
    )
    if "ERROR" not in done.stdout and done.returncode == 0:
        pytest.skip("this machine has a driver")
    assert "ERROR a tensor is on a CUDA device, but CUDA's driver cannot be opened" in done.stdout, done.stdout
    assert "install NVIDIA's driver" in done.stdout


def test_one_rank_through_nccl(program: World, nccl: Path) -> None:
    """Results that the core allocates on the device are right, and NCCL knows the buckets as long as they exist."""
    done = program(
        1,
        f"""
        import ctypes
        from perseus_like.torch.gradients.gradient_memory import allocate, register
        from perseus_like.process_sets import ProcessSet
        x = torch.arange(6, dtype=torch.float32)
        assert hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0).tolist() == (2 * x).tolist()
        for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.bool):
            rows = torch.ones(3, 2).to(dtype)
            gathered = hvd.allgather(rows)
            assert gathered.dtype == dtype and torch.equal(gathered, rows)
        assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
        assert [t.tolist() for t in hvd.grouped_allgather([x, x + 1])] == [x.tolist(), (x + 1).tolist()]
        received, splits = hvd.alltoall(x, splits=[6])
        assert received.tolist() == x.tolist() and list(splits) == [6]
        assert hvd.reducescatter(x, op=hvd.Sum).tolist() == x.tolist()
        assert [len(t) for t in hvd.grouped_reducescatter([x, x])] == [6, 6]

        registered = ctypes.CDLL({str(nccl)!r}).fakeRegistered
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # DistributedOptimizer returns the optimizer itself if there is one rank, so the size is 2 for this call.
        plain, ProcessSet.size = ProcessSet.size, lambda self: 2
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        ProcessSet.size = plain
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        print("REGISTERED", registered(), flush=True)
        try:
            hvd.join()
        except ValueError as error:
            print("ERROR", error, flush=True)
        del optimizer
        print("LET GO", registered(), flush=True)
        kept = register(allocate(10, (torch.float32, torch.device("cpu"))), hvd.global_process_set)
        hvd.allreduce_(x, name="x")
        print("AGAIN", registered(), flush=True)
        hvd.shutdown()
        print("AFTERWARDS", registered(), flush=True)
        """,
        PERSEUS_NCCL_LIBRARY=str(nccl),
        PERSEUS_NCCL_REGISTER="1",
        PERSEUS_NCCL_STREAMS="2",
        PERSEUS_LOG_LEVEL="info",
    )
    assert done.returncode == 0, done.stdout
    assert "NCCL on 2 streams" in done.stdout, done.stdout
    assert "REGISTERED 2" in done.stdout, done.stdout
    assert "LET GO 0" in done.stdout, done.stdout
    assert "AGAIN 2" in done.stdout, done.stdout
    assert "AFTERWARDS 0" in done.stdout, done.stdout
    assert "ERROR join() would give zeros from memory that NCCL does not know" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_rank_that_joins_before_it_had_a_tensor_there(program: World) -> None:
    """Each process sees one device, its own: the number of a rank on the host is not that of a device."""
    done = program(
        2,
        """
        if hvd.rank() == 0:
            print("SUM", hvd.allreduce(torch.ones(4), op=hvd.Sum, name="x").tolist(), flush=True)
        print("LAST", hvd.join(), flush=True)
        """,
        FAKE_CUDA_DEVICES="1",
    )
    assert done.returncode == 0, done.stdout
    assert "SUM [1.0, 1.0, 1.0, 1.0]" in done.stdout, done.stdout
    assert done.stdout.count("LAST") == 2, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["", "5"])
def test_a_rank_joins_on_the_device_that_is_current(program: World, argument: str) -> None:
    done = program(
        2,
        f"""
        pretended_device.device = 5
        pretended_device.current_device = 5 if {not argument} else 3
        if hvd.rank() == 0:
            hvd.allreduce(torch.ones(4), op=hvd.Sum, name="x")
        hvd.join({argument})
        print("AFTER", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="y").item(), flush=True)
        """,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("AFTER 2.0") == 2, done.stdout


def test_a_commit_waits_for_the_device(program: World, nccl: Path) -> None:
    done = program(
        1,
        """
        weights = torch.ones(4)
        state = hvd.elastic.TorchState(weights=weights)
        hvd.allreduce_(weights, op=hvd.Sum, prescale_factor=2.0, name="x")
        print("BEFORE", weights.tolist(), flush=True)
        state.commit()
        state.restore()
        print("SAVED", state.weights.tolist(), flush=True)
        """,
        PERSEUS_NCCL_LIBRARY=str(nccl),
        FAKE_CUDA_STREAMS="late",
    )
    assert done.returncode == 0, done.stdout
    assert "BEFORE [1.0, 1.0, 1.0, 1.0]" in done.stdout, done.stdout
    assert "SAVED [2.0, 2.0, 2.0, 2.0]" in done.stdout, done.stdout


def test_a_step_that_failed_on_the_device_is_not_committed(program: World, nccl: Path) -> None:
    done = program(
        1,
        f"""
        import ctypes
        state = hvd.elastic.TorchState(step=0)
        state.commit()
        hvd.allreduce_(torch.ones(4), op=hvd.Sum, name="x")
        ctypes.CDLL({str(nccl)!r}).fakeFailLater(2)
        state.step = 1
        try:
            state.commit()
        except hvd.HorovodInternalError as error:
            print("ERROR", error, flush=True)
        state.restore()
        print("STEP", state.step, flush=True)
        """,
        PERSEUS_NCCL_LIBRARY=str(nccl),
        FAKE_CUDA_STREAMS="late",
    )
    assert "ERROR" in done.stdout, done.stdout
    assert "STEP 0" in done.stdout, done.stdout


@pytest.mark.slow
def test_batch_norm_does_not_wait_for_the_device(program: World) -> None:
    """Code that reads a number of a tensor would wait for the device."""
    done = program(
        2,
        """
        def refuse(name):
            def call(*_):
                raise AssertionError(f"{name} waits for the device")
            return call

        layers = [hvd.SyncBatchNorm(3, momentum=momentum) for momentum in (0.1, None)]
        for name in ("item", "tolist", "__float__", "__int__", "__bool__", "new_tensor"):
            setattr(torch.Tensor, name, refuse(name))
        for step in range(2):
            for layer in layers:
                values = torch.full((2, 3, 2), float(hvd.rank()), requires_grad=True)
                layer(values).sum().backward()
        torch.Tensor.tolist = lambda self: self.numpy().tolist()
        print("MEANS", [[round(x, 6) for x in layer.running_mean.tolist()] for layer in layers], flush=True)
        """,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("MEANS [[0.095, 0.095, 0.095], [0.5, 0.5, 0.5]]") == 2, done.stdout


def test_gradients_are_copied_to_a_bucket_at_once(program: World) -> None:
    done = program(
        2,
        """
        model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(4)])
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        copies, copy = [], torch.Tensor.copy_
        batches, copy_batch = [], torch._foreach_copy_
        torch.Tensor.copy_ = lambda self, *rest, **more: (copies.append(1), copy(self, *rest, **more))[1]
        torch._foreach_copy_ = lambda targets, sources: (batches.append(len(targets)), copy_batch(targets, sources))[1]
        for step in range(3):
            copies.clear(), batches.clear()
            optimizer.zero_grad()
            model(torch.full((2, 3), 1.0 + hvd.rank())).sum().backward()
            local = [p.grad.clone() for p in model.parameters()]
            optimizer.synchronize()
            means = [hvd.allreduce(each, name=f"{step}.{i}") for i, each in enumerate(local)]
            if step == 2:
                print("COPIES", len(copies), batches, flush=True)
                equal = [torch.allclose(p.grad, mean) for p, mean in zip(model.parameters(), means)]
                print("EQUAL", all(equal), flush=True)
            with optimizer.skip_synchronize():
                optimizer.step()
        """,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("COPIES 0 [8]") == 2, done.stdout
    assert done.stdout.count("EQUAL True") == 2, done.stdout


@pytest.mark.slow
def test_tests_of_torch_distributed_pass_on_the_device(tests_pass: TestsPass) -> None:
    """The unchanged tests of torch.distributed over the backend `perseus` pass with tensors on the device."""
    files = sorted((HERE.parent / "distributed/in_world").glob("test_*.py"))
    of_no_device = {"test_tensors_without_memory.py", "test_touched_gradients.py"}  # wrappers; compared with gloo's
    files = [file for file in files if file.name not in of_no_device]
    # test_training.py skips itself with an old torch.
    at_least = 200 if importlib.util.find_spec("torch.distributed.pipelining") else 170
    tests_pass(2, files, at_least, plugin="pretended_device")


@pytest.mark.slow
def test_the_order_of_streams_is_kept_through_host_memory(tests_pass: TestsPass) -> None:
    """Streams execute their work only when they are waited for (see pretended_streams.py)."""
    files = ["test_streams.py", "test_mistakes.py"]
    tests_pass(2, [HERE / "in_world" / file for file in files], 34, FAKE_CUDA_STREAMS="late")


@pytest.mark.slow
def test_the_order_of_streams_is_kept_through_nccl(tests_pass: TestsPass, nccl: Path) -> None:
    """With one rank, results are in memory that the core has allocated on the device."""
    file = HERE / "in_world" / "test_streams.py"
    tests_pass(1, [file], 20, FAKE_CUDA_STREAMS="late", PERSEUS_NCCL_LIBRARY=str(nccl))
