"""Classes of gluon that this library derives from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx


def trainer_that_reduces(reduce: Callable[[Any], None], before_update: Callable[[Any, bool], None]) -> type:
    """Returns a class of Trainers whose steps call `reduce(trainer)` for the gradients, in place of a key-value store.

    `before_update(trainer, ignore_stale_grad)` runs before the parameters are updated. A parameter is only updated if
    its gradient is new; see `has_new_gradient`.

    Relies on: `gluon.Trainer._allreduce_grads()`, which `step` and `allreduce_grads` call, and
    `gluon.Trainer._update(ignore_stale_grad)`, which `step` and `update` call.
    Tried with: 1.9.1.
    Notices: a method is missing.
    Lost then: `import perseus_like.mxnet` fails with an AttributeError that says so.
    """
    trainer: type = mx.gluon.Trainer
    for name in ("_allreduce_grads", "_update"):
        if not hasattr(trainer, name):
            raise AttributeError(
                f"DistributedTrainer cannot be made: gluon's Trainer of MXNet {mx.__version__} has no {name}; "
                "install MXNet 1.9.1"
            )

    class ReducingTrainer(trainer):  # type: ignore[misc]
        def _allreduce_grads(self) -> None:
            reduce(self)

        def _update(self, ignore_stale_grad: bool = False) -> None:
            before_update(self, ignore_stale_grad)
            super()._update(ignore_stale_grad)

    return ReducingTrainer


def parameters_of(trainer: Any) -> list[Any]:
    """Returns the parameters of a Trainer.

    Relies on: `gluon.Trainer._params`, a list.
    Tried with: 1.9.1.
    Notices: the attribute is missing.
    Lost then: DistributedTrainer fails with Python's AttributeError.
    """
    parameters: list[Any] = trainer._params
    return parameters


def options_of(layer: Any) -> dict[str, Any]:
    """Returns the options of a BatchNorm layer, by the names of MXNet's operator.

    Relies on: `gluon.nn.BatchNorm._kwargs`, with `eps`, `momentum`, `fix_gamma` and `use_global_stats`.
    Tried with: 1.9.1.
    Notices: the attribute or an entry is missing.
    Lost then: PerseusSyncBatchNorm fails with Python's AttributeError or KeyError.
    """
    options: dict[str, Any] = layer._kwargs
    return options


def register_kvstore(name: str, store: type) -> None:
    """Lets `mxnet.kv.create(name)` make a key-value store of this class.

    Relies on: `KVStoreBase.kv_registry`, a dictionary. The documented `KVStoreBase.register` takes the name of the
    class, which cannot contain a dash.
    Tried with: 1.9.1.
    Notices: the dictionary is missing.
    Lost then: `import perseus_like.mxnet` fails with Python's AttributeError.
    """
    mx.kvstore.KVStoreBase.kv_registry[name] = store
