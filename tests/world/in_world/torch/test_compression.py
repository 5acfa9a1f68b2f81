"""Tests of compression with error feedback: compared with NumPy, on a real task, and with other options."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.torch.compression.one_bit import pack, unpack  # noqa: E402
from perseus_like.torch.compression.top_k import WHOLE_ELEMENTS  # noqa: E402
from perseus_like.torch.feedback import FeedbackCompressor  # noqa: E402

from .training import assert_same_on_all_ranks, grad_scaler  # noqa: E402

Array = np.ndarray[Any, Any]
SHAPES = [(40, 50), (7,), (8, 6, 5, 5), (), (0, 3), (3, 1)]
LONG_ROWS = [(40, 50), (8, 6, 5, 5)]
STEPS, RATIO = 4, 0.05


def gradients(rank: int, step: int) -> list[Array]:
    random = np.random.default_rng([rank, step])
    return [np.asarray(random.standard_normal(shape) + 0.1) for shape in SHAPES]


class Reference:
    """The mean of what all ranks send, if `sent_of` gives the part of a gradient and of earlier rests that is sent."""

    def __init__(self, size: int, sent_of: Callable[[Array], Array]) -> None:
        self.sent_of = sent_of
        self.errors = [[np.zeros(shape) for shape in SHAPES] for _ in range(size)]

    def mean(self, step: int) -> list[Array]:
        totals = [np.zeros(shape) for shape in SHAPES]
        for rank, errors in enumerate(self.errors):
            for place, gradient in enumerate(gradients(rank, step)):
                wanted = gradient + errors[place]
                sent = self.sent_of(wanted)
                errors[place] = wanted - sent
                totals[place] = totals[place] + sent
        return [total / len(self.errors) for total in totals]


def top_k(wanted: Array) -> Array:
    count = wanted.size if wanted.size <= WHOLE_ELEMENTS else int(np.ceil(RATIO * wanted.size))
    smallest = np.sort(np.abs(wanted), axis=None)[wanted.size - count :].min(initial=np.inf)
    return np.where(np.abs(wanted) >= smallest, wanted, 0.0)


def one_bit(wanted: Array) -> Array:
    def means(row: Array) -> Array:
        high, low = (float(np.float32(part.mean())) if part.size else 0.0 for part in (row[row >= 0], row[row < 0]))
        return np.where(row >= 0, high, low)

    rows = wanted.reshape(len(wanted), -1) if wanted.shape in LONG_ROWS else wanted.reshape(1, -1)
    return np.asarray(np.concatenate([means(row) for row in rows]).reshape(wanted.shape))


REFERENCES: dict[str, tuple[Callable[[], Any], Callable[[Array], Array]]] = {
    "top_k": (lambda: hvd.Compression.top_k(ratio=RATIO), top_k),
    "one_bit": (lambda: hvd.Compression.one_bit, one_bit),
}


class GivenGradients(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model whose gradients are the arguments of `forward`."""

    def __init__(self, dtype: Any = torch.float64) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList([torch.zeros(shape, dtype=dtype) for shape in SHAPES])

    def forward(self, wanted: list[Array]) -> Any:
        return sum((p * torch.as_tensor(g).to(p.dtype)).sum() for p, g in zip(self.all, wanted, strict=True))


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("kind", REFERENCES)
def test_against_numpy(kind: str, op: str, rank: int, size: int, two_ranks: None) -> None:
    compression, sent_of = REFERENCES[kind]
    model, reference = GivenGradients(), Reference(size, sent_of)
    plain = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(
        plain, model.named_parameters(), compression=compression(), op=getattr(hvd, op), gradient_predivide_factor=1.0
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        model(gradients(rank, step)).backward()
        optimizer.step()
        for parameter, expected in zip(model.all, reference.mean(step), strict=True):
            factor = size if op == "Sum" else 1
            np.testing.assert_allclose(parameter.grad.numpy(), factor * expected, rtol=1e-6, atol=1e-6 * factor)


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFERENCES)
def test_error_feedback_sends_all_parts_eventually(kind: str, rank: int, size: int, two_ranks: None) -> None:
    """The sum over many steps with the same gradient approaches this gradient times the number of steps."""
    model = GivenGradients(torch.bfloat16).to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), compression=REFERENCES[kind][0]())
    steps = 300
    own = [np.sign(gradient) * (1 + rank) for gradient in gradients(0, 0)]
    arrived = [torch.zeros(shape) for shape in SHAPES]
    for _ in range(steps):
        optimizer.zero_grad()
        model(own).backward()
        optimizer.synchronize()
        for total, parameter in zip(arrived, model.all, strict=True):
            total += parameter.grad
        with optimizer.skip_synchronize():
            optimizer.step()
    for total, gradient in zip(arrived, own, strict=True):
        expected = np.sign(gradient) * (1 + size) / 2
        np.testing.assert_allclose(
            total.numpy() / steps, expected, atol=(0.03 if kind == "one_bit" else 0.2) * (1 + size) / 2
        )
    assert_same_on_all_ranks(model)


def digits() -> tuple[Any, Any]:
    data = datasets.load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def accuracy_after_training(compression: Any, rank: int, size: int) -> float:
    """Trains a perceptron, and returns its accuracy on 357 images that it was not trained on."""
    torch.manual_seed(0)
    images, labels = digits()
    order = torch.randperm(len(labels))
    train, test = order[357:], order[:357]
    model = torch.nn.Sequential(
        *[torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    each = 64 // size
    for _ in range(16):
        for start in range(0, len(train) - 63, 64):
            mine = train[start + rank * each : start + (rank + 1) * each]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
        train = train[torch.randperm(len(train))]
    assert_same_on_all_ranks(model)
    return float((model(images[test]).argmax(1) == labels[test]).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fp16", "bf16", "top_k", "one_bit"])
def test_converges_on_the_digits(kind: str, rank: int, size: int) -> None:
    compression = getattr(hvd.Compression, kind)
    assert accuracy_after_training(compression, rank, size) >= 0.95


def test_bits_are_packed_and_unpacked() -> None:
    for count in (0, 1, 7, 8, 9, 1000):
        bits = torch.arange(count) % 3 == 0
        packed = pack(bits)
        assert packed.dtype == torch.uint8
        assert len(packed) == (count + 7) // 8
        assert torch.equal(unpack(packed, count), bits)


@pytest.mark.parametrize("kind", REFERENCES)
def test_an_overflow_reaches_all_ranks_and_is_not_fed_back(kind: str, rank: int, size: int) -> None:
    model = GivenGradients(torch.float32)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), compression=REFERENCES[kind][0]())
    scaler = grad_scaler(init_scale=4.0)
    for step in range(5):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        own = gradients(rank, step)
        if step in (0, 2) and rank == size - 1:
            own[0][:] = np.inf
        scaler.scale(model(own)).backward()
        scaler.step(optimizer)
        scaler.update()
        changed = [
            not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True) if old.numel()
        ]
        assert not any(changed) if step in (0, 2) else all(changed)
        assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_scale_that_changes_does_not_change_what_was_left_out(kind: str, rank: int) -> None:
    """The scale doubles after each step. Powers of two are exact, so the weights are those without a scaler."""
    models = [GivenGradients(), GivenGradients()]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), compression=REFERENCES[kind][0]())
        for model in models
    ]
    scaler = grad_scaler(init_scale=4.0, growth_interval=1)
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        own = gradients(rank, step)
        models[0](own).backward()
        optimizers[0].step()
        scaler.scale(models[1](own)).backward()
        scaler.step(optimizers[1])
        scaler.update()
    assert scaler.get_scale() == 4.0 * 2**STEPS
    for plain, scaled in zip(models[0].parameters(), models[1].parameters(), strict=True):
        np.testing.assert_allclose(scaled.detach().numpy(), plain.detach().numpy(), rtol=1e-9, atol=1e-9)


def test_gradients_outside_of_buckets(rank: int, size: int, two_ranks: None) -> None:
    """Parameters are unfrozen, groups are added, and steps have two passes."""
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 20), torch.nn.Linear(20, 1))
    hvd.broadcast_parameters(model.state_dict(), 0)
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model[:2].parameters(), lr=0.1),
        compression=hvd.Compression.top_k(ratio=0.5),
        backward_passes_per_step=2,
    )
    for step in range(6):
        if step == 2:
            model[0].requires_grad_(True)
        if step == 4:
            optimizer.add_param_group({"params": list(model[2].parameters())})
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.full((3, 40), rank + step + 1.0)).square().mean().backward()
        optimizer.step()
    assert_same_on_all_ranks(model)


@pytest.mark.parametrize("kind", REFERENCES)
def test_compression_with_other_options(kind: str, rank: int, size: int, two_ranks: None) -> None:
    """The other options are groups, a predivide factor, a process set and sparse gradients.

    Ranks outside of the process set train alone.
    """
    both = hvd.add_process_set([0, size - 1]) if size > 2 else hvd.global_process_set
    torch.manual_seed(6)
    model = torch.nn.Sequential(
        torch.nn.Embedding(20, 8, sparse=True), torch.nn.Flatten(), torch.nn.Linear(24, 60), torch.nn.Linear(60, 2)
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        compression=REFERENCES[kind][0](),
        groups=2,
        gradient_predivide_factor=2.0,
        process_set=both,
    )
    words = torch.arange(6).reshape(2, 3) + rank
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(words) - rank).square().mean()
        loss.backward()
        optimizer.step()
        shared = hvd.allreduce(loss.detach(), name="loss", process_set=both) if both.included() else loss
        losses.append(shared.item())
    assert losses[-1] < losses[0]
    assert model[0].weight.grad.is_sparse
    digests = hvd.allgather_object(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    assert digests[0] == digests[size - 1]
    if both is not hvd.global_process_set:
        assert len(set(digests)) == size - 1  # one for the process set, and one for each rank outside of it
        hvd.remove_process_set(both)


def test_a_custom_compression_with_error_feedback(rank: int, size: int, two_ranks: None) -> None:
    class FirstHalf(FeedbackCompressor):
        """Sends one half of a gradient in each step, alternately."""

        def __init__(self) -> None:
            super().__init__()
            self._step = 0

        def exchange(self, name: str, pieces: Any, process_set: Any) -> Any:
            self._step += 1
            halves = [piece.values.chunk(2)[self._step % 2] for piece in pieces]
            sums = [hvd.allreduce_async(half.clone(), name=f"{name}.{place}") for place, half in enumerate(halves)]
            for half in halves:
                half.zero_()

            def finish() -> bool:
                for piece, handle in zip(pieces, sums, strict=True):
                    piece.mean.zero_()
                    piece.mean.chunk(2)[self._step % 2].copy_(hvd.synchronize(handle))
                return True

            return finish

    layer = torch.nn.Linear(4, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.0), compression=FirstHalf())
    expected = [[0, 0, 1, 1], [2, 2, 0, 0], [0, 0, 2, 2]]
    for step in range(3):
        optimizer.zero_grad()
        (layer.weight.sum() * 2 * (rank + 1) / (size + 1)).backward()
        optimizer.step()
        torch.testing.assert_close(layer.weight.grad, torch.tensor([expected[step]], dtype=torch.float32))


def test_mistakes(rank: int, size: int) -> None:
    for kind in (hvd.Compression.top_k, hvd.Compression.one_bit()):
        with pytest.raises(ValueError, match="DistributedOptimizer only"):
            hvd.allreduce(torch.ones(3), compression=kind)
    for wrong in (0.0, 1.5, -1.0):
        with pytest.raises(ValueError, match="ratio"):
            hvd.Compression.top_k(ratio=wrong)
    plain = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="not Adasum"):
        hvd.DistributedOptimizer(plain, compression=hvd.Compression.one_bit, op=hvd.Adasum)
    assert repr(hvd.Compression.top_k(ratio=0.5)) == "TopKCompressor(ratio=0.5)"
    if size == 1:
        return
    layer = torch.nn.Linear(40, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compression = hvd.Compression.one_bit() if rank else hvd.Compression.top_k()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), compression=compression)
    layer(torch.ones(1, 40)).sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"compressed by TopK.*compressed by OneBit"):
        optimizer.step()
