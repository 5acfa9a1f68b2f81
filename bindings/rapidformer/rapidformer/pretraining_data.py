"""Samples of pretraining, from Megatron's .bin/.idx files: masked pairs of segments for BERT, or blocks of tokens.

Every sample is computed from the seed and its number, so all processes and all restarts see the same ones.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from . import state
from .checks import split_parts
from .options import InputError

IGNORED = -100
Sample = dict[str, torch.Tensor]


def indexed_dataset() -> Any:
    """Returns the module of megatron-core that reads and writes PREFIX.bin and PREFIX.idx."""
    with warnings.catch_warnings():
        # At import, megatron-core warns that its optimizers are slow without Transformer Engine. They are not used.
        warnings.simplefilter("ignore")
        return importlib.import_module("megatron.core.datasets.indexed_dataset")


def open_indexed(prefix: str) -> Any:
    """Opens PREFIX.bin and PREFIX.idx."""
    return indexed_dataset().IndexedDataset(prefix, mmap=True)


def split_documents(indexed: Any, splits: str) -> list[range]:
    """Returns the documents of training, validation and test."""
    count = len(indexed.document_indices) - 1
    ends = np.rint(np.cumsum(split_parts(splits)) * count).astype(int)
    return [range(int(begin), int(end)) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


class BlockDataset(Dataset[Sample]):
    """Blocks of `length` tokens of the documents, one after the other."""

    def __init__(self, indexed: Any, documents: range, count: int, length: int, seed: int, extra: int = 0) -> None:
        bounds = indexed.document_indices
        parts = [indexed[index] for document in documents for index in range(bounds[document], bounds[document + 1])]
        self._tokens = np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
        self._count, self._length, self._seed = count, length + extra, seed
        self._blocks = (len(self._tokens) - extra) // length
        self._stride = length
        if self._blocks < 1:
            raise InputError(
                f"the data has {len(self._tokens)} tokens in a part of --split, less than --seq-length {length}"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        epoch, place = divmod(number, self._blocks)
        block = int(np.random.default_rng((self._seed, epoch)).permutation(self._blocks)[place])
        text = torch.from_numpy(self._tokens[block * self._stride :][: self._length].copy())
        return {"text": text, "input_ids": text, "labels": text.clone()}


class BertDataset(Dataset[Sample]):
    """Pairs of segments with masked tokens. If `binary_head` is true, half of the pairs are in the wrong order."""

    def __init__(
        self, indexed: Any, documents: range, count: int, length: int, seed: int, masked: float, short: float,
        binary_head: bool, tokenizer: Any,
    ) -> None:  # fmt: skip
        self._indexed, self._count, self._length, self._seed = indexed, count, length, seed
        self._masked, self._short, self._binary_head = masked, short, binary_head
        self._tokenizer = tokenizer
        self._bounds = indexed.document_indices
        self._documents = [each for each in documents if self._bounds[each + 1] - self._bounds[each] > 1]
        if not self._documents:
            raise InputError(
                "no document of a part of --split has two sentences; use preprocess with --split-sentences"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        random = np.random.default_rng((self._seed, number))
        first, second = self._segments(random)
        is_swapped = self._binary_head and bool(random.random() < 0.5)
        if is_swapped:
            first, second = second, first
        cls, sep = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        tokens = np.array([cls, *first, sep, *second, sep], dtype=np.int64)
        kinds = np.array([0] * (len(first) + 2) + [1] * (len(second) + 1), dtype=np.int64)
        labels = self._mask(tokens, random)
        space = self._length - len(tokens)
        padded = np.pad(tokens, (0, space), constant_values=self._tokenizer.pad_token_id)
        return {
            "input_ids": torch.from_numpy(padded),
            "attention_mask": torch.from_numpy(np.pad(np.ones_like(tokens), (0, space))),
            "token_type_ids": torch.from_numpy(np.pad(kinds, (0, space))),
            "labels": torch.from_numpy(np.pad(labels, (0, space), constant_values=IGNORED)),
            "next_sentence_label": torch.tensor(int(is_swapped)),
        }

    def _segments(self, random: np.random.Generator) -> tuple[list[int], list[int]]:
        """Returns the tokens of two parts of a document that follow one another."""
        document = self._documents[int(random.integers(len(self._documents)))]
        begin, end = int(self._bounds[document]), int(self._bounds[document + 1])
        room = self._length - 3
        if random.random() < self._short:
            room = int(random.integers(2, room + 1))
        start = int(random.integers(begin, end - 1))
        sentences = []
        for index in range(start, end):
            sentences.append(self._indexed[index].tolist())
            if sum(map(len, sentences)) >= room and len(sentences) > 1:
                break
        middle = int(random.integers(1, len(sentences)))
        first, second = (list(itertools.chain(*part)) for part in (sentences[:middle], sentences[middle:]))
        while len(first) + len(second) > room:
            (first if len(first) > len(second) else second).pop()
        return first, second

    def _mask(self, tokens: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
        """Masks some tokens in place. Returns the labels."""
        labels: np.ndarray[Any, Any] = np.full_like(tokens, IGNORED)
        special = (self._tokenizer.cls_token_id, self._tokenizer.sep_token_id)
        places = [place for place, token in enumerate(tokens) if token not in special]
        chosen = random.permutation(places)[: round(len(places) * self._masked) or 1]
        for place in chosen:
            labels[place] = tokens[place]
            chance = random.random()
            if chance < 0.8:
                tokens[place] = self._tokenizer.mask_token_id
            elif chance < 0.9:
                tokens[place] = random.integers(len(self._tokenizer))
        return labels


def build_train_valid_test_datasets_for_huggingface(
    data_prefix: str,
    data_impl: str,
    splits_string: str,
    train_valid_test_num_samples: Sequence[int],
    max_seq_length: int,
    masked_lm_prob: float,
    short_seq_prob: float,
    seed: int,
    skip_warmup: bool = True,
    binary_head: bool = True,
) -> tuple[Any, Any, Any]:
    """Returns BERT's data for training, validation and test. A part without documents is None."""
    if data_impl != "mmap":
        raise InputError(f"--data-impl {data_impl} is not supported; use mmap")
    indexed = open_indexed(data_prefix)
    made: list[Any] = []
    for number, documents in enumerate(split_documents(indexed, splits_string)):
        arguments = (masked_lm_prob, short_seq_prob, binary_head, state.get_tokenizer())
        count = train_valid_test_num_samples[number]
        made.append(
            BertDataset(indexed, documents, count, max_seq_length, seed + number, *arguments) if documents else None
        )
    return made[0], made[1], made[2]


build_pretrain_huggingface_bert_datasets = build_train_valid_test_datasets_for_huggingface


def build_gpt_datasets(
    data_prefix: str, splits_string: str, counts: Sequence[int], seq_length: int, seed: int, extra: int = 0
) -> tuple[Any, Any, Any]:
    """Returns blocks of tokens for training, validation and test. Blocks overlap by `extra` tokens, the last labels."""
    indexed = open_indexed(data_prefix)
    made: list[Any] = []
    for number, documents in enumerate(split_documents(indexed, splits_string)):
        made.append(
            BlockDataset(indexed, documents, counts[number], seq_length, seed + number, extra) if documents else None
        )
    return made[0], made[1], made[2]
