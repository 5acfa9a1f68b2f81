"""The training loop and its two templates."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import checkpoint, state
from .engine import RapidformerEngine
from .loading import EvaluationLoader, TrainingBatches, evaluation_loader, make_loader, to_device, training_batches
from .options import InputError
from .parallel import without_reduction
from .pipeline import Pipeline, next_token_loss

RESULT_VARIABLE = "RAPIDFORMER_RESULT"
Collate = Callable[[list[Any]], Any]


class Trainer:
    """The loop that both templates share. Scripts derive from Finetuner or PreTrainer."""

    def __init__(self, engine: RapidformerEngine) -> None:
        self.engine = engine
        self.args, self.world = engine.args, engine.world
        self.logger = state.get_logger()
        self.losses: list[float] = []
        self._seconds: list[float] = []
        self._metrics: dict[str, Any] = {}

    # Methods of a script's class.

    def model_optimizer_lr_scheduler_provider(self) -> tuple[Any, Any, Any]:
        """Returns the model, and an optimizer and a function that makes a scheduler, or None for the default ones.

        If it takes pre_process and post_process, it returns the stage of a pipeline: the first one if pre_process is
        true, the last one if post_process is true.
        """
        raise NotImplementedError

    def pipeline_loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the loss of the last stage's output."""
        return next_token_loss(output, labels)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.engine.gather(tensor)

    # Parts that the two templates fill in.

    def _forward(self, batches: Iterator[Any], model: Any) -> Any:
        raise NotImplementedError

    def _data(self) -> tuple[Any, Any, Collate | None, bool]:
        """Returns training data, validation data, the function that makes a batch, and if the order is random."""
        raise NotImplementedError

    def _evaluate(self, model: Any, loader: EvaluationLoader) -> dict[str, Any]:
        raise NotImplementedError

    # The loop.

    def train(self) -> None:
        """Trains, evaluates and saves as the options say."""
        args, engine = self.args, self.engine
        train_data, valid_data, collate, shuffle = self._data()
        batches = training_batches(len(train_data), self.world, shuffle)
        if args.train_iters is None:
            args.train_iters = (args.epochs or 1) * batches.steps_per_epoch
        bare, optimizer, scheduler = self._provided()
        is_pipeline = self.world.size_of("pp") > 1
        if is_pipeline:
            args.micro_batch_size *= engine.accumulation
            batches = training_batches(len(train_data), self.world, shuffle)
        model, optimizer, scheduler = engine.compose(bare, optimizer, scheduler, args.train_iters)
        forward_model = Pipeline(model, self.world, engine.accumulation, self.pipeline_loss) if is_pipeline else model
        first = 0
        if args.load is not None:
            first = checkpoint.load(model, optimizer, scheduler, engine.scaler, args, self.world)
        batches.first_step = first
        stream = (to_device(batch, self.world.device) for batch in make_loader(train_data, batches, collate))
        valid = None
        if is_pipeline:
            self.logger.info("a model in stages is not evaluated")
        elif valid_data is not None and len(valid_data) > 0:
            valid = evaluation_loader(valid_data, collate)

        model.train()
        for iteration in range(first + 1, args.train_iters + 1):
            begun = time.perf_counter()
            loss, norm = self._step(stream, forward_model, optimizer, is_pipeline)
            scheduler.step()
            self.losses.append(loss)
            self._seconds.append(time.perf_counter() - begun)
            self._log(iteration, norm, scheduler)
            at_end = iteration == args.train_iters
            if valid is not None and self._is_due(iteration, args.eval_interval, batches, at_end):
                self._report_evaluation(iteration, model, valid)
            if args.save is not None and self._is_due(iteration, args.save_interval, batches, at_end):
                checkpoint.save(iteration, model, optimizer, scheduler, engine.scaler, args, self.world)
        self._finish()

    def _provided(self) -> tuple[Any, Any, Any]:
        provider: Callable[..., tuple[Any, Any, Any]] = self.model_optimizer_lr_scheduler_provider
        stages = self.world.size_of("pp")
        if "pre_process" in inspect.signature(provider).parameters:
            index = self.world.rank_in("pp")
            return provider(pre_process=index == 0, post_process=index == stages - 1)
        if stages > 1:
            raise InputError(
                f"--pipeline-model-parallel-size {stages}: model_optimizer_lr_scheduler_provider of "
                f"{type(self).__name__} hands over no stages; it must take pre_process and post_process"
            )
        return provider()

    def _step(self, stream: Iterator[Any], model: Any, optimizer: Any, is_pipeline: bool) -> tuple[float, float]:
        """Takes one step of the optimizer. Returns the mean loss of all replicas and the norm of the gradients."""
        optimizer.zero_grad()
        total = torch.zeros((), device=self.world.device)
        count = 1 if is_pipeline else self.engine.accumulation
        for number in range(count):
            with without_reduction(model, number < count - 1):
                loss = self._loss(stream, model)
                if not is_pipeline:
                    self.engine.backward(loss / count)
            total += loss.detach().float() / count
        norm = self.engine.finish_gradients(optimizer)
        self.engine.step(optimizer)
        return self.engine.mean(total), norm

    def _loss(self, stream: Iterator[Any], model: Any) -> torch.Tensor:
        found = self._forward(stream, model)
        if isinstance(found, tuple):  # Megatron's scripts return the output and a function
            found = found[1](found[0])
        loss = found[0] if isinstance(found, tuple) else found
        assert isinstance(loss, torch.Tensor)
        return loss

    def _is_due(self, iteration: int, interval: int | None, batches: TrainingBatches, at_end: bool) -> bool:
        if interval is None:
            interval = self.args.train_iters if self.args.epochs is None else batches.steps_per_epoch
        return at_end or iteration % interval == 0

    def _log(self, iteration: int, norm: float, scheduler: Any) -> None:
        args = self.args
        if iteration % args.log_interval == 0 or iteration == args.train_iters:
            rate = args.global_batch_size / statistics.mean(self._seconds[-args.log_interval :])
            self.logger.info(
                "iteration %d/%d | lm loss %.6E | learning rate %.3E | grad norm %.3f | samples/s %.1f",
                *(iteration, args.train_iters, self.losses[-1], scheduler.get_last_lr()[0], norm, rate),
            )

    def _report_evaluation(self, iteration: int, model: Any, loader: EvaluationLoader) -> None:
        model.eval()
        with torch.no_grad():
            self._metrics = self._evaluate(model, loader)
        model.train()
        metrics = " | ".join(f"{name} {value:.6g}" for name, value in self._metrics.items())
        self.logger.info("evaluation after iteration %d | %s", iteration, metrics)

    def _finish(self) -> None:
        """Reports speed and memory. The first step is not counted, because it compiles and allocates."""
        counted = self._seconds[1:] or self._seconds
        rates = [self.args.global_batch_size / seconds for seconds in counted]
        peak = torch.tensor([float(peak_memory_mib(self.world.device))], device=self.world.device)
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        result = {
            "losses": self.losses,
            "metrics": self._metrics,
            "samples_per_second": statistics.median(rates) if rates else 0.0,
            "deviation": statistics.pstdev(rates) if rates else 0.0,
            "peak_memory_mib": float(peak),
        }
        if self.world.rank == 0:
            self.logger.info(
                "trained | samples/s %.1f ± %.1f | peak memory of a process %.0f MiB",
                *(result["samples_per_second"], result["deviation"], result["peak_memory_mib"]),
            )
            if RESULT_VARIABLE in os.environ:
                Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(result))


def peak_memory_mib(device: torch.device) -> float:
    """Returns the most memory that this process had: on the GPU, or all of it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


class Finetuner(Trainer):
    """The template of fine-tuning: epochs over a data set, in random order."""

    def train_valid_test_datasets_provider(self) -> Any:
        """Returns (training, validation, collate function) or (training, validation, test, collate function)."""
        raise NotImplementedError

    def run_forward_step(self, batch: Any, model: Any) -> Any:
        """Returns the loss of the batch."""
        raise NotImplementedError

    def run_compute_metrics(self, model: list[nn.Module], eval_dataloader: EvaluationLoader) -> dict[str, Any]:
        """Returns metrics of the validation data. `model` is a list with the model. The default is the mean loss."""
        losses = [self.engine.mean(self._loss(iter([batch]), model[0])) for batch in eval_dataloader]
        return {"loss": sum(losses) / len(losses)}

    def _data(self) -> tuple[Any, Any, Collate | None, bool]:
        found = self.train_valid_test_datasets_provider()
        return found[0], found[1], found[-1], True

    def _forward(self, batches: Iterator[Any], model: Any) -> Any:
        return self.run_forward_step(next(batches), model)

    def _evaluate(self, model: Any, loader: EvaluationLoader) -> dict[str, Any]:
        return self.run_compute_metrics([model], loader)


class PreTrainer(Trainer):
    """The template of pretraining: iterations over data in the order that the data set has."""

    def train_valid_test_datasets_provider(self, train_val_test_num_samples: list[int]) -> Any:
        """Returns the training, the validation and the test data, which may be None."""
        raise NotImplementedError

    def run_forward_step(self, data_iterator: Iterator[Any], model: Any) -> Any:
        """Returns the loss of the next batch, or the output and a function that computes the loss from it."""
        raise NotImplementedError

    def _data(self) -> tuple[Any, Any, Collate | None, bool]:
        args = self.args
        if args.train_iters is None:
            raise InputError("pretraining needs --train-iters")
        counts = [args.train_iters * args.global_batch_size, args.eval_iters * args.global_batch_size]
        found = self.train_valid_test_datasets_provider([*counts, counts[1]])
        return found[0], found[1], None, False

    def _forward(self, batches: Iterator[Any], model: Any) -> Any:
        return self.run_forward_step(batches, model)

    def _evaluate(self, model: Any, loader: EvaluationLoader) -> dict[str, Any]:
        batches = itertools.islice(loader, self.args.eval_iters)
        losses = [self.engine.mean(self._loss(iter([batch]), model)) for batch in batches]
        return {"loss": sum(losses) / len(losses)}


Pretrainer = PreTrainer
