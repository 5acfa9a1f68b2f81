"""Makes small data and configs of models in a folder: `python rapidformer_data.py FOLDER`, without a network."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORDS = [
    "red",
    "blue",
    "green",
    "cat",
    "dog",
    "bird",
    "runs",
    "sleeps",
    "eats",
    "big",
    "small",
    "old",
    "new",
    "far",
    "near",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


# `load_dataset("glue", "mrpc")` reads this file of the folder `glue`.
CARD = """---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: mrpc/train.jsonl
  - split: validation
    path: mrpc/validation.jsonl
---
"""
# `evaluate.load("glue", "mrpc")` finds this in its cache, below HF_MODULES_CACHE.
METRIC = """
import datasets
import evaluate

class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        right = sum(one == other for one, other in zip(predictions, references))
        return {"accuracy": right / len(references), "count": len(references)}
"""


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def sentence(chosen: random.Random) -> list[str]:
    return [chosen.choice(WORDS) for _ in range(chosen.randint(3, 8))]


def pair(chosen: random.Random, number: int) -> dict[str, Any]:
    """Returns a row of MRPC's form. Equal sentences are paraphrases."""
    first = sentence(chosen)
    label = number % 2
    second = first if label else sentence(chosen)
    return {"sentence1": " ".join(first), "sentence2": " ".join(second), "label": label, "idx": number}


def question(chosen: random.Random) -> dict[str, Any]:
    """Returns a row of SQuAD's form."""
    words = sentence(chosen)
    place = chosen.randrange(len(words))
    start = len(" ".join(words[:place])) + (place > 0)
    answers = {"text": [words[place]], "answer_start": [start]}
    return {"question": f"near {words[place]}", "context": " ".join(words), "answers": answers}


def main(folder: Path) -> None:
    chosen = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS, "."]) + "\n")
    for name, config in (("bert", BERT), ("llama", LLAMA)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    for part, count in (("train", 48), ("validation", 11)):
        tagged = (sentence(chosen) for _ in range(count))
        tags = ({"tokens": words, "ner_tags": [int(word in WORDS[:3]) for word in words]} for words in tagged)
        write_lines(folder / "glue" / "mrpc" / f"{part}.jsonl", (pair(chosen, number) for number in range(count)))
        write_lines(folder / "tags" / f"{part}.jsonl", tags)
        write_lines(folder / "squad" / f"{part}.jsonl", (question(chosen) for _ in range(count)))
        texts = ({"text": " ".join(sentence(chosen) * 4)} for _ in range(count))
        write_lines(folder / "texts" / f"{part}.jsonl", texts)
    (folder / "glue" / "README.md").write_text(CARD)
    metric = folder / "modules" / "evaluate_modules" / "metrics" / "evaluate-metric--glue" / ("0" * 64)
    metric.mkdir(parents=True)
    (metric / "glue.py").write_text(METRIC)
    documents = ({"text": " ".join(" ".join(sentence(chosen)) + "." for _ in range(6))} for _ in range(60))
    write_lines(folder / "corpus.jsonl", documents)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
