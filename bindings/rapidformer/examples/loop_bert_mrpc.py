"""A loop that a user wrote, with `compose` and `build_data_loader`: `rapidformer --user-script loop_bert_mrpc.py …`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from datasets import load_dataset
from rapidformer import RapidformerEngine, build_data_loader, get_args, get_logger, get_timers, get_tokenizer
from transformers import AutoConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

engine = RapidformerEngine()
args, logger, timers = get_args(), get_logger(), get_timers()
tokenizer = get_tokenizer()


def tokenize_function(examples: Any) -> Any:
    return tokenizer(examples["sentence1"], examples["sentence2"], truncation=True, max_length=args.seq_length)


def collate_fn(examples: Any) -> Any:
    return tokenizer.pad(examples, padding="longest", return_tensors="pt")


datasets = load_dataset(args.data_path, args.data_name)
tokenized_datasets = datasets.map(tokenize_function, batched=True, remove_columns=["idx", "sentence1", "sentence2"])
tokenized_datasets = tokenized_datasets.rename_column("label", "labels")
train_dataloader = build_data_loader(tokenized_datasets["train"], args.micro_batch_size, task_collate_fn=collate_fn)

model: Any = BertForSequenceClassification(AutoConfig.from_pretrained(args.pretrained_model_name_or_path))
optimizer: Any = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
lr_scheduler: Any = partial(
    get_linear_schedule_with_warmup, num_warmup_steps=1, num_training_steps=args.epochs * len(train_dataloader)
)
model, optimizer, lr_scheduler = engine.compose(model_obj=model, optimizer_obj=optimizer, lr_scheduler_fn=lr_scheduler)

for epoch in range(args.epochs):
    model.train()
    train_dataloader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    for batch in train_dataloader:
        timers("step").start()
        loss = model(**batch.to(engine.device)).loss
        engine.backward(loss)
        engine.finish_gradients(optimizer)
        engine.step(optimizer)
        lr_scheduler.step()
        optimizer.zero_grad()
        timers("step").stop()
    logger.info("epoch %d | loss %.6f", epoch, engine.mean(loss))
timers.log(["step"])
