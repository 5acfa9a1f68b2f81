"""Generates tokens with a Llama that transformers divides among the ranks. The argument is the folder of the model.

A single process makes the model from a config.
"""

import os
import sys

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig

folder = sys.argv[1]
torch.manual_seed(0)
if int(os.environ.get("WORLD_SIZE", "1")) == 1:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    backend = "one process"
else:
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    group = dist.distributed_c10d._get_default_group()
    backend = f"{dist.get_backend()} {type(group._get_backend(torch.device('cpu')))}"

parameters = sum(getattr(each, "to_local", lambda each=each: each)().numel() for each in model.parameters())
prompt, count = torch.arange(7)[None], 24
with torch.no_grad():
    tokens = model.generate(prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
print(f"RESULT {backend}: {parameters} parameters, tokens {tokens[0, 7:].tolist()}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
