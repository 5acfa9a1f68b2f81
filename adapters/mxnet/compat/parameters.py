"""Parameters of gluon: when they get their values, and where their gradients are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx


def after_initialization(parameter: Any, do: Callable[[], object]) -> None:
    """Calls `do` once, when a parameter of unknown shape has been given its values.

    Relies on: `Parameter._init_impl(data, devices)`, the method that gives a parameter its values. It is replaced in
    the object until the first call.
    Tried with: 1.9.1.
    Notices: the method is missing.
    Lost then: broadcast_parameters and DistributedTrainer fail with Python's AttributeError for such parameters.
    """
    initialize = parameter._init_impl

    def initialize_and_do(*arguments: Any) -> None:
        parameter.__dict__.pop("_init_impl", None)  # restores the method of the class
        initialize(*arguments)
        do()

    parameter._init_impl = initialize_and_do


def has_new_gradient(parameter: Any) -> bool:
    """Returns whether a backward pass has written the gradient since the last step of a Trainer.

    Relies on: `NDArray._fresh_grad` of the parameter's one array.
    Tried with: 1.9.1.
    Notices: the attribute is missing.
    Lost then: DistributedTrainer fails with Python's AttributeError.
    """
    (data,) = parameter.list_data()
    return bool(data._fresh_grad)


def mark_new_gradient(parameter: Any) -> None:
    """Makes the next step of a Trainer use the parameter's gradient, although no backward pass has written it.

    Relies on: `NDArray._fresh_grad` of the parameter's one array, which can be set.
    Tried with: 1.9.1.
    Notices: `has_new_gradient` returns something else afterwards.
    Lost then: a rank without a gradient skips an update that the other ranks make; the probe reports it.
    """
    (data,) = parameter.list_data()
    data._fresh_grad = True


def replace_gradient(parameter: Any, gradient: Any) -> None:
    """Lets autograd write the parameter's gradient into another array from now on.

    Relies on: `Parameter._grad`, the list of gradients that `list_grad` returns, `NDArray._fresh_grad`, and
    `mxnet.autograd.mark_variables`, which is documented.
    Tried with: 1.9.1.
    Notices: `list_grad` returns another array, or a backward pass writes into another array.
    Lost then: DistributedTrainer reduces arrays that no backward pass writes; the probe reports it.
    """
    (data,) = parameter.list_data()
    is_new = data._fresh_grad
    parameter._grad = [gradient]
    mx.autograd.mark_variables([data], parameter._grad, parameter.grad_req)
    data._fresh_grad = is_new
