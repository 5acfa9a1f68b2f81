"""Generates tokens with vLLM on CPUs. The arguments are the folder of the model and the number of ranks.

vLLM starts the ranks. The first program makes the model from a config.
"""

import os
import sys
from pathlib import Path
from typing import Any

folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
cores = sorted(os.sched_getaffinity(0))
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="|".join(str(cores[rank % len(cores)]) for rank in range(ranks)),
    VLLM_NO_USAGE_STATS="1",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # for the question to the workers
)


def make_model() -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = LlamaConfig(vocab_size=512, num_hidden_layers=3, max_position_embeddings=128, **shape)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def communicator(worker: Any) -> str:
    from vllm.distributed.parallel_state import get_tp_group

    return type(get_tp_group().device_communicator).__name__


def main() -> None:
    from vllm import LLM, SamplingParams

    if not folder.exists():
        make_model()
    model = LLM(
        str(folder),
        skip_tokenizer_init=True,
        tensor_parallel_size=ranks,
        distributed_executor_backend="mp",
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=2,
    )
    asked = SamplingParams(temperature=0, max_tokens=24, min_tokens=24, detokenize=False)
    (found,) = model.generate({"prompt_token_ids": list(range(7))}, asked, use_tqdm=False)
    print(f"RESULT {sorted(model.collective_rpc(communicator))}: {list(found.outputs[0].token_ids)}", flush=True)


if __name__ == "__main__":
    main()
