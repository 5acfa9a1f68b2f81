"""The built-in tasks, as templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from . import finetuning_data as data
from . import mpu, state
from .engine import RapidformerEngine
from .loading import EvaluationLoader
from .models import is_masked, make_config, make_model
from .options import InputError
from .pretraining_data import build_gpt_datasets, build_train_valid_test_datasets_for_huggingface
from .trainer import Finetuner, PreTrainer, Trainer

BERT_KEYS = ["input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label"]


def run_task(arguments: Sequence[str]) -> None:
    """Trains the model of --task."""
    engine = RapidformerEngine(arguments=list(arguments))
    TASKS[engine.args.task](engine).train()


class _Task(Finetuner):
    """A fine-tuning task. Its class says how to encode the data and which metrics there are."""

    _labels: dict[str, Any]

    def train_valid_test_datasets_provider(self) -> Any:
        train, valid = data.load(self.args)
        self._labels = self._options(train)
        made = [None if part is None else self._encode(part) for part in (train, valid)]
        return made[0], made[1], default_collate

    def model_optimizer_lr_scheduler_provider(self) -> tuple[Any, Any, Any]:
        return make_model(self.args, **self._labels), None, None

    def run_forward_step(self, batch: Any, model: Any) -> Any:
        return model(**batch).loss

    def _length(self) -> int:
        limit = make_config(self.args).max_position_embeddings
        length = int(self.args.seq_length or min(limit, 128))
        if length > limit:
            raise InputError(f"--seq-length {length} is more than the model's {limit} positions")
        return length

    def _options(self, train: Any) -> dict[str, Any]:
        """Returns what the data says about the model."""
        return {}

    def _encode(self, part: Any) -> Any:
        raise NotImplementedError

    def _outputs(self, model: Any, loader: EvaluationLoader) -> Iterator[tuple[Any, Any]]:
        """Yields the batches of the validation data with the model's outputs."""
        for batch in loader:
            with torch.no_grad():
                yield batch, model(**batch)


class SequenceClassification(_Task):
    """GLUE's form: one or two columns of text, and a label."""

    def _options(self, train: Any) -> dict[str, Any]:
        self._label = data.column(train, ("label", "labels"), self.args.task)
        return {"num_labels": data.number_of_labels(train, self._label)}

    def _encode(self, part: Any) -> Any:
        return data.classify_sequences(part, state.get_tokenizer(), self._length(), self._label)

    def run_compute_metrics(self, model: list[nn.Module], eval_dataloader: EvaluationLoader) -> dict[str, Any]:
        found = [
            (self.gather(output.logits.argmax(-1)), self.gather(batch["labels"]))
            for batch, output in self._outputs(model[0], eval_dataloader)
        ]
        predicted, wanted = (torch.cat(each) for each in zip(*found, strict=True))
        return classification_metrics(predicted, wanted)


def classification_metrics(predicted: torch.Tensor, wanted: torch.Tensor) -> dict[str, float]:
    """Returns the accuracy, and with two classes GLUE's F1 score of class 1."""
    metrics = {"accuracy": float((predicted == wanted).float().mean())}
    if int(wanted.max()) <= 1:
        hits = int(((predicted == 1) & (wanted == 1)).sum())
        metrics["f1"] = 2 * hits / max(1, int((predicted == 1).sum()) + int((wanted == 1).sum()))
    return metrics


class TokenClassification(_Task):
    """CoNLL's form: a list of words and a list of tags."""

    def _options(self, train: Any) -> dict[str, Any]:
        self._words = data.column(train, ("tokens", "words"), self.args.task)
        self._tags = data.column(train, ("ner_tags", "tags", "labels"), self.args.task)
        return {"num_labels": data.number_of_labels(train, self._tags)}

    def _encode(self, part: Any) -> Any:
        return data.classify_tokens(part, state.get_tokenizer(), self._length(), self._words, self._tags)

    def run_compute_metrics(self, model: list[nn.Module], eval_dataloader: EvaluationLoader) -> dict[str, Any]:
        right = total = 0
        for batch, output in self._outputs(model[0], eval_dataloader):
            predicted, wanted = self.gather(output.logits.argmax(-1)), self.gather(batch["labels"])
            counted = wanted != data.IGNORED
            right += int((predicted == wanted)[counted].sum())
            total += int(counted.sum())
        return {"accuracy": right / max(1, total)}


class QuestionAnswering(_Task):
    """SQuAD's form: question, context, answers."""

    def _options(self, train: Any) -> dict[str, Any]:
        for name in ("question", "context", "answers"):
            data.column(train, (name,), self.args.task)
        return {}

    def _encode(self, part: Any) -> Any:
        return data.answer_questions(part, state.get_tokenizer(), self._length())

    def run_compute_metrics(self, model: list[nn.Module], eval_dataloader: EvaluationLoader) -> dict[str, Any]:
        exact = overlap = total = 0.0
        for batch, output in self._outputs(model[0], eval_dataloader):
            spans = torch.stack([output.start_logits.argmax(-1), output.end_logits.argmax(-1)], 1)
            wanted = torch.stack([batch["start_positions"], batch["end_positions"]], 1)
            spans, wanted = self.gather(spans), self.gather(wanted)
            exact += float((spans == wanted).all(1).sum())
            common = (torch.minimum(spans[:, 1], wanted[:, 1]) - torch.maximum(spans[:, 0], wanted[:, 0]) + 1).clamp(
                min=0
            )
            lengths = (spans[:, 1] - spans[:, 0] + 1).clamp(min=0) + wanted[:, 1] - wanted[:, 0] + 1
            overlap += float((2 * common / lengths.clamp(min=1)).sum())
            total += len(spans)
        return {"exact_match": exact / total, "f1_of_tokens": overlap / total}


class LanguageModeling(_Task):
    """A column `text`. The model predicts the next token, or masked ones if it is of BERT's kind."""

    def train_valid_test_datasets_provider(self) -> Any:
        train, valid, _ = super().train_valid_test_datasets_provider()
        return train, valid, self._collate

    def _encode(self, part: Any) -> Any:
        return data.model_language(part, state.get_tokenizer(), self._length())

    def _collate(self, samples: list[Any]) -> Any:
        from transformers import DataCollatorForLanguageModeling

        masks = is_masked(make_config(self.args))
        # The masks depend on the samples alone, so a training that continues has the same ones.
        seed = (self.args.seed + int(samples[0]["input_ids"].sum())) if masks else None
        tokenizer = state.get_tokenizer()
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        collate = DataCollatorForLanguageModeling(tokenizer, mlm=masks, mlm_probability=self.args.mask_prob, seed=seed)
        return dict(collate(samples))

    def run_compute_metrics(self, model: list[nn.Module], eval_dataloader: EvaluationLoader) -> dict[str, Any]:
        losses = [self.engine.mean(output.loss) for _, output in self._outputs(model[0], eval_dataloader)]
        loss = torch.tensor(losses).mean()
        return {"loss": float(loss), "perplexity": float(loss.exp())}


class Pretraining(PreTrainer):
    """BERT with masked pairs of segments, or a causal model with blocks of tokens, over .bin/.idx files."""

    def train_valid_test_datasets_provider(self, train_val_test_num_samples: list[int]) -> Any:
        args = self.args
        if args.seq_length > make_config(args).max_position_embeddings:
            raise InputError(f"--seq-length {args.seq_length} is more than the model's positions")
        if not is_masked(make_config(args)):
            return build_gpt_datasets(
                args.data_path, args.split, train_val_test_num_samples, args.seq_length, args.seed
            )
        return build_train_valid_test_datasets_for_huggingface(
            data_prefix=args.data_path,
            data_impl=args.data_impl,
            splits_string=args.split,
            train_valid_test_num_samples=train_val_test_num_samples,
            max_seq_length=args.seq_length,
            masked_lm_prob=args.mask_prob,
            short_seq_prob=args.short_seq_prob,
            seed=args.seed,
            skip_warmup=not args.mmap_warmup,
        )

    def model_optimizer_lr_scheduler_provider(self) -> tuple[Any, Any, Any]:
        return make_model(self.args), None, None

    def run_forward_step(self, data_iterator: Iterator[Any], model: Any) -> Any:
        batch = next(data_iterator)
        keys = BERT_KEYS if "next_sentence_label" in batch else ["input_ids", "labels"]
        return model(**mpu.broadcast_data(keys, batch, torch.int64)).loss


TASKS: dict[str, type[Trainer]] = {
    "sequence_classification": SequenceClassification,
    "token_classification": TokenClassification,
    "question_answering": QuestionAnswering,
    "language_modeling": LanguageModeling,
    "pretraining": Pretraining,
}
