"""Pretrains BERT on .bin/.idx data by a template: `rapidformer --user-script pretrain_bert.py --data-impl mmap …`."""

from __future__ import annotations

from typing import Any

import torch
from megatron import mpu  # type: ignore[attr-defined]  # `rapidformer --user-script` puts rapidformer.mpu there
from rapidformer import (
    PreTrainer,
    RapidformerEngine,
    build_train_valid_test_datasets_for_huggingface,
    get_args,
)
from transformers import AutoConfig, BertForPreTraining


class MyBertPreTrainer(PreTrainer):
    def train_valid_test_datasets_provider(self, train_val_test_num_samples: Any) -> Any:
        args = get_args()
        return build_train_valid_test_datasets_for_huggingface(
            data_prefix=args.data_path,
            data_impl=args.data_impl,
            splits_string=args.split,
            train_valid_test_num_samples=train_val_test_num_samples,
            max_seq_length=args.seq_length,
            masked_lm_prob=args.mask_prob,
            short_seq_prob=args.short_seq_prob,
            seed=args.seed,
            skip_warmup=(not args.mmap_warmup),
            binary_head=True,
        )

    def model_optimizer_lr_scheduler_provider(self) -> Any:
        args = get_args()
        config = AutoConfig.from_pretrained(args.pretrained_model_name_or_path)
        return BertForPreTraining(config), None, None

    def run_forward_step(self, data_iterator: Any, model: Any) -> Any:
        keys = ["input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label"]
        data = next(data_iterator) if data_iterator is not None else None
        data_b = mpu.broadcast_data(keys, data, torch.int64)
        output_tensor = model(
            input_ids=data_b["input_ids"].long(),
            attention_mask=data_b["attention_mask"].long(),
            token_type_ids=data_b["token_type_ids"].long(),
            labels=data_b["labels"].long(),
            next_sentence_label=data_b["next_sentence_label"].long(),
        )
        return output_tensor["loss"]


if __name__ == "__main__":
    engine = RapidformerEngine()
    trainer = MyBertPreTrainer(engine=engine)
    trainer.train()
