"""Fine-tunes BERT on MRPC by a template: `rapidformer --user-script finetune_bert_mrpc.py --data-path glue …`."""

from __future__ import annotations

from typing import Any

import torch
from datasets import load_dataset
from evaluate import load as load_metric
from rapidformer import Finetuner, RapidformerEngine, get_args, get_tokenizer
from transformers import AutoConfig, BertForSequenceClassification


class MyFinetuner(Finetuner):
    def train_valid_test_datasets_provider(self) -> Any:
        args = get_args()
        tokenizer = get_tokenizer()

        def tokenize_function(examples: Any) -> Any:
            return tokenizer(examples["sentence1"], examples["sentence2"], truncation=True, max_length=args.seq_length)

        datasets = load_dataset(args.data_path, args.data_name)
        tokenized_datasets = datasets.map(
            tokenize_function, batched=True, remove_columns=["idx", "sentence1", "sentence2"]
        )
        tokenized_datasets = tokenized_datasets.rename_column("label", "labels")

        def collate_fn(examples: Any) -> Any:
            return tokenizer.pad(examples, padding="longest", return_tensors="pt")

        return tokenized_datasets["train"], tokenized_datasets["validation"], collate_fn

    def model_optimizer_lr_scheduler_provider(self) -> Any:
        # A new model, because nothing is downloaded. With weights: BertForSequenceClassification.from_pretrained(…).
        config = AutoConfig.from_pretrained(get_args().pretrained_model_name_or_path)
        return BertForSequenceClassification(config), None, None

    def run_forward_step(self, batch: Any, model: Any) -> Any:
        return model(**batch).loss

    # This runs after each epoch.
    def run_compute_metrics(self, model: Any, eval_dataloader: Any) -> Any:
        args = get_args()
        model = model[0]
        metric = load_metric(args.data_path, args.data_name)
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions = outputs.logits.argmax(dim=-1)
            metric.add_batch(predictions=self.gather(predictions), references=self.gather(batch["labels"]))
        return metric.compute()


if __name__ == "__main__":
    engine = RapidformerEngine()
    trainer = MyFinetuner(engine=engine)
    trainer.train()
