"""Pretrains a GPT in stages: `rapidformer --user-script pretrain_gpt.py --pipeline-model-parallel-size 2 …`.

Megatron's GPTModel needs CUDA, so the stages are made of the layers of transformers' Llama.
"""

from __future__ import annotations

from typing import Any

import torch
from rapidformer import PreTrainer, RapidformerEngine, get_args, mpu
from rapidformer.pretraining_data import build_gpt_datasets
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding


class GPTStage(nn.Module):
    """Some layers of a GPT. The first stage has the embedding, the last one the head."""

    def __init__(self, config: LlamaConfig, layers: range, pre_process: bool, post_process: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size) if pre_process else None
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in layers)
        self.rotary = LlamaRotaryEmbedding(config)
        self.norm = LlamaRMSNorm(config.hidden_size) if post_process else None
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if post_process else None
        self.tp_plan = dict(config.base_model_tp_plan or {})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs if self.embedding is None else self.embedding(inputs)
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        rotary = self.rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, position_ids=positions, position_embeddings=rotary)
        return hidden if self.norm is None or self.head is None else self.head(self.norm(hidden))


class MyGPTPreTrainer(PreTrainer):
    def train_valid_test_datasets_provider(self, train_val_test_num_samples: Any) -> Any:
        args = get_args()
        counts = train_val_test_num_samples
        return build_gpt_datasets(args.data_path, args.split, counts, args.seq_length, args.seed, extra=1)

    def model_optimizer_lr_scheduler_provider(self, pre_process: bool = True, post_process: bool = True) -> Any:
        args = get_args()
        config = LlamaConfig(
            vocab_size=args.vocab_size,
            hidden_size=args.hidden_size,
            intermediate_size=4 * args.hidden_size,
            num_hidden_layers=args.num_layers,
            num_attention_heads=args.num_attention_heads,
            max_position_embeddings=args.max_position_embeddings,
            attn_implementation="sdpa",
            use_cache=False,
        )
        count = args.num_layers // mpu.get_pipeline_model_parallel_world_size()
        first = mpu.get_pipeline_model_parallel_rank() * count
        return GPTStage(config, range(first, first + count), pre_process, post_process), None, None

    def run_forward_step(self, data_iterator: Any, model: Any) -> Any:
        data = next(data_iterator) if data_iterator is not None else None
        tokens_ = mpu.broadcast_data(["text"], data, torch.int64)["text"].long()
        labels = tokens_[:, 1:].contiguous()
        tokens = tokens_[:, :-1].contiguous()
        if mpu.get_pipeline_model_parallel_world_size() > 1:
            return model(tokens, labels=labels)
        return model(tokens), lambda output: self.pipeline_loss(output, labels)


def add_arguments(parser: Any) -> None:
    parser.add_argument("--vocab-size", type=int, required=True)


if __name__ == "__main__":
    engine = RapidformerEngine(extra_args_provider=add_arguments)
    trainer = MyGPTPreTrainer(engine=engine)
    trainer.train()
