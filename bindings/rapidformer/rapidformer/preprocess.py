"""Makes .bin/.idx files from JSON lines: `python -m rapidformer.preprocess`, with the options of Megatron's tool."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .options import TOKENIZERS, InputError
from .pretraining_data import indexed_dataset
from .state import make_tokenizer

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rapidformer.preprocess", description="Makes data for pretraining.")
    parser.add_argument("--input", required=True, help="file with one JSON object in each line")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="keys of the texts (default: text)")
    parser.add_argument("--output-prefix", required=True, help="files are PREFIX_KEY_document.bin or …_sentence.bin")
    parser.add_argument("--split-sentences", action="store_true", help="keep sentences apart, as BERT's data needs")
    parser.add_argument("--keep-newlines", action="store_true", help="do not split sentences at line ends")
    parser.add_argument("--append-eod", action="store_true", help="put the end token after each document")
    parser.add_argument("--tokenizer-type", required=True, choices=TOKENIZERS)
    parser.add_argument("--vocab-file")
    parser.add_argument("--merge-file")
    parser.add_argument("--pretrained-model-name-or-path", help="folder of the tokenizer, with PretrainedFromHF")
    parser.add_argument("--dataset-impl", default="mmap", choices=["mmap"])
    parser.add_argument("--workers", type=int, default=1, help="accepted; one process does the work")
    parser.add_argument("--log-interval", type=int, default=10000, help="documents between two lines of the log")
    parser.add_argument("--lang", default="english", help="accepted; sentences end at . ! and ?")
    return parser.parse_args(arguments)


def pieces(text: str, args: argparse.Namespace) -> list[str]:
    """Returns the sentences of a document, or the document."""
    if not args.split_sentences:
        return [text]
    lines = [text] if args.keep_newlines else text.splitlines()
    return [sentence for line in lines for sentence in SENTENCE_END.split(line.strip()) if sentence]


def documents(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with Path(args.input).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise InputError(f"{args.input}, line {number} is not JSON: {error}") from None


def end_token(tokenizer: Any) -> int:
    for name in ("eos_token_id", "sep_token_id"):
        if (found := getattr(tokenizer, name, None)) is not None:
            return int(found)
    raise InputError("--append-eod: the tokenizer has no end token")


def run(args: argparse.Namespace) -> None:
    """Writes one pair of files for each key."""
    for name in ("input", "vocab_file", "merge_file"):
        value = getattr(args, name)
        if value is not None and not Path(value).is_file():
            raise InputError(f"there is no file {value} (--{name.replace('_', '-')})")
    tokenizer = make_tokenizer(args)
    import torch

    indexed = indexed_dataset()

    level = "sentence" if args.split_sentences else "document"
    prefixes = {key: f"{args.output_prefix}_{key}_{level}" for key in args.json_keys}
    Path(args.output_prefix).parent.mkdir(parents=True, exist_ok=True)
    kind = indexed.DType.optimal_dtype(len(tokenizer))
    builders = {key: indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=kind) for key, prefix in prefixes.items()}
    for number, document in enumerate(documents(args), 1):
        for key, builder in builders.items():
            if key not in document:
                raise InputError(f"{args.input}: document {number} has no key {key!r} (--json-keys)")
            parts = [tokenizer.encode(part, add_special_tokens=False) for part in pieces(document[key], args)]
            parts = [part for part in parts if part]
            if not parts:
                continue
            if args.append_eod:
                parts[-1].append(end_token(tokenizer))
            for part in parts:
                builder.add_item(torch.tensor(part, dtype=torch.int64))
            builder.end_document()
        if number % args.log_interval == 0:
            print(f"{number} documents", file=sys.stderr)
    for key, builder in builders.items():
        builder.finalize(f"{prefixes[key]}.idx")
        print(prefixes[key])


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        run(parse(arguments))
    except InputError as error:
        print(f"rapidformer.preprocess: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
