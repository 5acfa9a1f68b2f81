"""hvd.shared with tensors and modules: one copy for the host, in which no tensor requires a gradient."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import perseus_like.torch as hvd


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.tensor(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.embedding(tokens))
        return result


def test_tensors_of_each_kind() -> None:
    def make() -> dict[str, Any]:
        base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        return {
            "base": base,
            "transposed": base.t(),
            "row": base[1],
            "half": torch.ones(3, dtype=torch.bfloat16),
            "none": torch.empty(0, 2),
            "conjugate": torch.tensor([1 + 2j]).conj(),
            "sparse": torch.eye(3).to_sparse(),
            "array": torch.arange(3).numpy(),
        }

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = hvd.shared(make, "tensors")
    assert found["base"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert found["transposed"].stride() == (1, 4)
    assert torch.equal(found["transposed"], found["base"].t())
    assert found["row"].data_ptr() == found["base"][1].data_ptr(), "views share the memory of their base"
    assert found["half"].tolist() == [1, 1, 1]
    assert found["none"].shape == (0, 2)
    assert found["conjugate"].tolist() == [1 - 2j]
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert not found["array"].flags.writeable
    assert hvd.allreduce(found["base"], op=hvd.Sum)[2, 3] == 11 * hvd.size()


def test_a_module_keeps_tied_weights_and_can_be_trained_around() -> None:
    def make() -> Tied:
        torch.manual_seed(hvd.rank())
        return Tied()

    base = hvd.shared(make, "base")
    torch.manual_seed(0)
    expected = Tied()
    assert base.head.weight is base.embedding.weight
    assert not any(parameter.requires_grad for parameter in base.parameters())
    assert {key: value.tolist() for key, value in base.state_dict().items()} == {
        key: value.tolist() for key, value in expected.state_dict().items()
    }
    # A trainable part on a frozen base, as LoRA has it.
    scale = torch.nn.Parameter(torch.ones(5))
    (base(torch.tensor([1, 2])) * scale).sum().backward()
    assert scale.grad is not None
    assert torch.equal(scale.grad, expected(torch.tensor([1, 2])).sum(0))


def test_a_copy_can_be_changed() -> None:
    frozen = hvd.shared(lambda: torch.zeros(4), "zeros")
    changed = frozen.clone().add_(1)
    assert changed.tolist() == [1, 1, 1, 1]
    assert frozen.tolist() == [0, 0, 0, 0]


def test_a_tensor_elsewhere_is_refused_on_all_ranks() -> None:
    with pytest.raises((ValueError, RuntimeError), match="a tensor on meta cannot be shared; return CPU tensors"):
        hvd.shared(lambda: torch.empty(3, device="meta"), "meta")
