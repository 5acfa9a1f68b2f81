"""Gradients that are reduced where autograd has put them: those that are too large to be worth a copy into a bucket."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .gradient_memory import dense_strides, say_once


class InPlace:
    """By place in the list of an owner's parameters."""

    def __init__(self, fills_in: bool) -> None:
        self._fills_in = fills_in
        self._parameters: dict[int, torch.Tensor] = {}
        self._strides: dict[int, tuple[int, ...]] = {}
        self._sent: dict[int, torch.Tensor] = {}
        self._zeros: dict[int, torch.Tensor] = {}  # what was sent for gradients that this rank did not have

    def use(self, parameters: Mapping[int, torch.Tensor]) -> None:
        self._parameters = dict(parameters)
        self._strides = {index: dense_strides(parameter) for index, parameter in parameters.items()}

    def row(self, index: int, name: str) -> torch.Tensor:
        """The gradient as a row of numbers, in the same order on all ranks; zeros where there is none."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            say_once(f"the gradient of {name!r} became sparse after the first step; it is kept dense")
            gradient = gradient.to_dense()
        if gradient is None:
            gradient = self._zeros[index] = self._empty(index).zero_()
            if self._fills_in and parameter.requires_grad:
                parameter.grad = gradient
        elif gradient.stride() != self._strides[index] or gradient.requires_grad:
            gradient = self._empty(index).copy_(gradient.detach())
        if parameter.grad is not None and parameter.grad is not gradient:
            parameter.grad = gradient
        self._sent[index] = gradient
        return gradient.as_strided((gradient.numel(),), (1,))

    def restore(self) -> None:
        """Gradients that were replaced after they were sent: what all ranks have counts."""
        for index, gradient in self._sent.items():
            parameter = self._parameters[index]
            if parameter.grad is not None and parameter.grad is not gradient:
                parameter.grad = gradient

    def show(self, index: int) -> None:
        """Gives the parameter what the other ranks have computed for it."""
        parameter = self._parameters[index]
        if index in self._zeros and parameter.requires_grad:
            parameter.grad = self._zeros[index]

    def scale(self, factor: float) -> None:
        for gradient in self._sent.values():
            gradient.mul_(factor)

    def forget(self) -> None:
        """They are the parameters' alone again."""
        self._sent.clear()
        self._zeros.clear()

    def __contains__(self, index: int) -> bool:
        return index in self._parameters

    def _empty(self, index: int) -> torch.Tensor:
        parameter = self._parameters[index]
        return torch.empty_strided(
            parameter.shape, self._strides[index], dtype=parameter.dtype, device=parameter.device
        )
