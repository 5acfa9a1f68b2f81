"""Trains with Hugging Face's Trainer as users' scripts do. The program does not name a backend."""

import torch
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    model = BertForSequenceClassification(config)
    words = torch.randint(0, 64, (64, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": int(row[0] % 2)} for row in words]
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:20])
    trained = trainer.train()
    evaluated = trainer.evaluate()
    backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else "none"
    kind = type(torch.distributed.group.WORLD).__name__
    total = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
    print(
        f"RESULT {backend} of {arguments.world_size} steps {trained.global_step} loss {evaluated['eval_loss']:.4f} "
        f"{kind} sum {total:.9f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
