"""Data of the fine-tuning tasks: from files or a folder, tokenized to --seq-length."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .options import InputError

FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
VALIDATION = ("validation", "validation_matched", "dev", "valid", "test")
IGNORED = -100


def load(args: Namespace) -> tuple[Any, Any]:
    """Returns the training data and the validation data, which may be None."""
    import datasets

    datasets.disable_progress_bars()
    path, name = Path(args.data_path), args.data_name
    try:
        if path.is_dir() and (path / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(str(path))
        elif path.is_file():
            if path.suffix not in FORMATS:
                raise InputError(f"--data-path {path}: the format {path.suffix} is not one of {', '.join(FORMATS)}")
            found = datasets.load_dataset(FORMATS[path.suffix], data_files={"train": str(path)})
        elif name is not None and (path / name).is_dir():
            found = datasets.load_dataset(str(path / name))
        else:
            found = datasets.load_dataset(args.data_path, name)
    except (OSError, ValueError, ConnectionError) as error:
        what = f"{path} {name or ''}".strip()
        raise InputError(
            f"there is no data set {what} (--data-path, --data-name): {str(error).splitlines()[0]}"
        ) from None
    if "train" not in found:
        raise InputError(f"the data set {path} has no part `train`; it has {', '.join(found)}")
    return found["train"], next((found[part] for part in VALIDATION if part in found), None)


def column(data: Any, names: tuple[str, ...], task: str) -> str:
    """Returns the first of these columns that the data has."""
    for name in names:
        if name in data.column_names:
            return name
    raise InputError(f"--task {task} needs a column {' or '.join(names)}; the data has {', '.join(data.column_names)}")


def texts(data: Any) -> list[str]:
    """Returns the names of one or two columns with text."""
    features = data.features
    found = [name for name in data.column_names if getattr(features[name], "dtype", "") in ("string", "large_string")]
    found = [name for name in found if name not in ("label", "labels", "id", "idx")]
    if not 1 <= len(found) <= 2:
        raise InputError(f"--task sequence_classification needs one or two columns of text, not {found}")
    return found


def number_of_labels(data: Any, name: str) -> int:
    """Returns the number of classes in a column of integers, or of lists of integers."""
    feature = getattr(data.features[name], "feature", data.features[name])
    if getattr(feature, "num_classes", None) is not None:
        return int(feature.num_classes)
    values: list[int] = [value for row in data[name] for value in (row if isinstance(row, list) else [row])]
    if not all(isinstance(value, int) for value in values):
        raise InputError(f"the column {name} must have integers, not {values[0]!r}")
    return 1 + max(values)


def classify_sequences(data: Any, tokenizer: Any, length: int, label: str) -> Any:
    columns = texts(data)

    def encode(rows: Mapping[str, list[Any]]) -> Any:
        made = tokenizer(*(rows[name] for name in columns), truncation=True, padding="max_length", max_length=length)
        made["labels"] = rows[label]
        return made

    return data.map(encode, batched=True, remove_columns=data.column_names).with_format("torch")


def classify_tokens(data: Any, tokenizer: Any, length: int, words: str, label: str) -> Any:
    """Gives the first token of each word the word's label."""

    def encode(rows: Mapping[str, list[Any]]) -> Any:
        made = tokenizer(
            rows[words], is_split_into_words=True, truncation=True, padding="max_length", max_length=length
        )
        made["labels"] = [labels_of(made.word_ids(number), row) for number, row in enumerate(rows[label])]
        return made

    return data.map(encode, batched=True, remove_columns=data.column_names).with_format("torch")


def labels_of(words: list[int | None], labels: list[int]) -> list[int]:
    previous = [None, *words[:-1]]
    return [
        IGNORED if word is None or word == before else labels[word]
        for word, before in zip(words, previous, strict=True)
    ]


def answer_questions(data: Any, tokenizer: Any, length: int) -> Any:
    """Gives each sample the first and the last token of its answer. An answer that is cut off is at token 0."""

    def encode(rows: Mapping[str, list[Any]]) -> Any:
        made = tokenizer(
            *(rows["question"], rows["context"]), truncation="only_second", padding="max_length", max_length=length,
            return_offsets_mapping=True,
        )  # fmt: skip
        spans = []
        for number, answer in enumerate(rows["answers"]):
            begin = answer["answer_start"][0] if answer["answer_start"] else -1
            end = begin + len(answer["text"][0]) if begin >= 0 else -1
            spans.append(span_of(made["offset_mapping"][number], made.sequence_ids(number), begin, end))
        del made["offset_mapping"]
        made["start_positions"], made["end_positions"] = [span[0] for span in spans], [span[1] for span in spans]
        return made

    return data.map(encode, batched=True, remove_columns=data.column_names).with_format("torch")


def span_of(offsets: list[tuple[int, int]], sequences: list[int | None], begin: int, end: int) -> tuple[int, int]:
    inside = [
        place
        for place, ((first, last), sequence) in enumerate(zip(offsets, sequences, strict=True))
        if sequence == 1 and last > begin and first < end
    ]
    is_whole = bool(inside) and begin >= 0 and offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= end
    return (inside[0], inside[-1]) if is_whole else (0, 0)


def model_language(data: Any, tokenizer: Any, length: int) -> Any:
    """Joins all texts and cuts them into blocks of `length` tokens."""
    text = column(data, ("text",), "language_modeling")

    def encode(rows: Mapping[str, list[Any]]) -> dict[str, list[list[int]]]:
        tokens = [token for row in rows[text] for token in tokenizer(row)["input_ids"]]
        count = len(tokens) // length
        return {"input_ids": [tokens[index * length :][:length] for index in range(count)]}

    return data.map(encode, batched=True, batch_size=None, remove_columns=data.column_names).with_format("torch")
