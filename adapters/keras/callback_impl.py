"""The callbacks without the base class `Callback`, which a module adds for each variant of Keras."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perseus_like import world
from perseus_like.collectives import Average, Collectives, Op
from perseus_like.elastic import variables
from perseus_like.errors import DisagreementError
from perseus_like.objects import difference_between_ranks
from perseus_like.tensor import ArrayTensors

from . import backends
from .compat.callback_hooks import checkpoint_that_saves_by
from .learning_rate import learning_rate_of, scale_velocity, set_learning_rate
from .saving import SavedWhole

_arrays: Collectives[Any] = Collectives(ArrayTensors())

logger = logging.getLogger(__name__)

Multiplier = float | Callable[[float], float]


class BroadcastGlobalVariablesCallbackImpl:
    """Copies the model and the optimizer of one rank to all ranks before the first batch.

    If the first batch builds the model of a rank, the copy happens after that batch. `local_variables` keep the values
    of each rank.

    Args:
        root_rank: the rank in the job whose values all ranks get.
        device: has no effect; it is an argument of Horovod.
        local_variables: variables that each rank keeps.

    Examples:
        >>> callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0)  # model.fit(…, callbacks=[callback])
    """

    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = list(local_variables or ())

    def register_local_var(self, var: Any) -> None:
        """Excludes `var`: each rank keeps its own value."""
        self._local.append(var)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        is_built = np.array([bool(getattr(self.model, "built", True))], np.uint8)
        if _arrays.allreduce(is_built, Op.Min, "keras.built").result()[0]:
            self._broadcast()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        local = {id(each) for each in self._local}
        weights = [weight for weight in self.model.weights if id(weight) not in local]
        optimizer = getattr(self.model, "optimizer", None)
        groups = {
            "weights": weights,
            "optimizer_variables": variables.of_optimizer(optimizer, self.model.trainable_variables),
        }
        for what, group in groups.items():
            variables.broadcast(group, self.root_rank, what, access=backends.chosen())
        self.broadcast_done = True


class MetricAverageCallbackImpl:
    """Replaces each metric of an epoch by its average over all ranks. Must come before callbacks that read metrics.

    Args:
        device: has no effect; it is an argument of Horovod.

    Raises:
        DisagreementError: at the end of an epoch, if the ranks have metrics of different names.

    Examples:
        >>> callback = hvd.callbacks.MetricAverageCallback()  # model.fit(…, callbacks=[callback])
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        numbers = {name: float(value) for name, value in sorted(logs.items()) if np.ndim(value) == 0}
        difference = difference_between_ranks(list(numbers), "keras.metrics")
        if difference is not None:
            raise DisagreementError(
                f"MetricAverageCallback: ranks have different metrics: at position {difference}; compile the model "
                "with the same metrics on all ranks, and let callbacks that add values to the logs of one rank come "
                "after MetricAverageCallback"
            )
        if numbers:
            averages = _arrays.allreduce(np.array(list(numbers.values())), Average, "keras.metrics").result()
            logs.update(zip(numbers, averages.tolist(), strict=True))


class LearningRateScheduleCallbackImpl:
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` until before `end_epoch`.

    Args:
        initial_lr: the learning rate of the first epoch.
        multiplier: a function of the epoch, which has a fraction unless `staircase`; or a number b, for
            b ** (epoch - start_epoch).
        start_epoch: the first epoch in which the rate is set.
        end_epoch: the epoch from which the rate is no longer set. The default is never.
        staircase: change the rate once per epoch, not with every batch.
        momentum_correction: multiply velocities, which contain the rate, by the same factor when the rate changes
            (Goyal et al., 2017, arXiv:1706.02677).
        steps_per_epoch: the number of batches in an epoch; by default Keras' number.

    Raises:
        ValueError: `initial_lr` is None.

    Examples:
        >>> callback = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.9)
    """

    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError(f"{type(self).__name__}: initial_lr is None; pass the learning rate of the first epoch")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else lambda epoch: float(multiplier ** (epoch - start_epoch))
        )

    def on_train_begin(self, logs: Any = None) -> None:
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(f"{type(self).__name__}: the number of batches per epoch is unknown; pass steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = learning_rate_of(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        before = learning_rate_of(self.model.optimizer)
        after = self.initial_lr * self.multiplier(epoch)
        set_learning_rate(self.model.optimizer, after)
        if self.momentum_correction and before:
            scale_velocity(self.model.optimizer, after / before)


class LearningRateWarmupCallbackImpl(LearningRateScheduleCallbackImpl):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` in equal steps over `warmup_epochs`.

    Args:
        initial_lr: the learning rate after the warmup.
        warmup_epochs: the number of epochs of the warmup.
        momentum_correction: multiply velocities, which contain the rate, by the same factor when the rate changes
            (Goyal et al., 2017, arXiv:1706.02677).
        steps_per_epoch: the number of batches in an epoch; by default Keras' number.
        verbose: if not 0, rank 0 logs the end of the warmup.

    Raises:
        ValueError: `initial_lr` is None.

    Examples:
        >>> callback = hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=3)
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # Counts one batch more, so that the rate reaches its final value in the last batch.
            done = (epoch + 1.0 / (self.steps_per_epoch or 1)) / warmup_epochs
            return (1.0 + done * (world.size() - 1)) / world.size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and self.end_epoch is not None and epoch == self.end_epoch - 1 and world.rank() == 0:
            rate = learning_rate_of(self.model.optimizer)
            logger.info("epoch %d: the warmup of the learning rate has ended at %g", epoch + 1, rate)


def _save_atomically(checkpoint: Any, save: Callable[[], None]) -> None:
    if checkpoint.filepath is None:
        raise ValueError("BestModelCheckpoint cannot save the model: it has no path; set its `filepath` before fit()")
    model = checkpoint.model
    checkpoint.set_model(SavedWhole(model))
    try:
        save()
    finally:
        checkpoint.set_model(model)


class BestModelCheckpointImpl(checkpoint_that_saves_by(_save_atomically)):  # type: ignore[misc]
    """A ModelCheckpoint that keeps the best model in the file `filepath`, an attribute that must be set before `fit`.

    The file contains the best model so far until the next one has been written completely.

    Args:
        monitor: the metric that decides which model is best.
        verbose: if 1, Keras reports each file that is written.
        mode: "min", "max" or "auto": whether a small or a large value of the metric is good.
        save_freq: "epoch", or a number of batches.

    Raises:
        ValueError: `filepath` is not set when a model is to be saved.

    Examples:
        >>> callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
        >>> callback.filepath = "/tmp/best.keras"
    """

    model: Any

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        checkpoint: Any = super()
        checkpoint.__init__(
            "best.weights.h5" if save_weights_only else "best.keras",  # Keras chooses the format by the suffix
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None


class CommitStateCallbackImpl:
    """Commits an elastic state every `batches_per_commit` batches, and at the end of each epoch.

    Args:
        state: the elastic state.
        batches_per_commit: the number of batches from one commit to the next.

    Examples:
        >>> from perseus_like.objects import broadcast_object
        >>> state = hvd.elastic.ObjectState(broadcast_object, hvd.rank, batch=0)
        >>> callback = hvd.elastic.CommitStateCallback(state, batches_per_commit=10)
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        # Ranks that have processed different numbers of batches start counting together.
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchStateCallbackImpl:
    """Keeps the number of the batch in `state.batch`, 0 between epochs. Must come before CommitStateCallback.

    Args:
        state: the elastic state, with an attribute `batch`.

    Examples:
        >>> from perseus_like.objects import broadcast_object
        >>> state = hvd.elastic.ObjectState(broadcast_object, hvd.rank, batch=0)
        >>> callback = hvd.elastic.UpdateBatchStateCallback(state)
    """

    params: dict[str, Any]

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallbackImpl:
    """Keeps the number of completed epochs in `state.epoch`, also over several calls of `fit`.

    Args:
        state: the elastic state, with an attribute `epoch`.

    Examples:
        >>> from perseus_like.objects import broadcast_object
        >>> state = hvd.elastic.ObjectState(broadcast_object, hvd.rank, epoch=0)
        >>> callback = hvd.elastic.UpdateEpochStateCallback(state)
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1
