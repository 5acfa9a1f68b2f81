"""Generates tokens with vLLM on CPUs. The arguments are the folder of the model and the number of ranks.

vLLM starts the ranks, unless a launcher has started them. To let vLLM start ranks on two hosts, run this on both.
Further arguments are the address of the first host and the number of this host, 0 or 1. The first program makes the
model from a config.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
address, host = (sys.argv[3], int(sys.argv[4])) if len(sys.argv) > 3 else ("", 0)
is_launched = "RANK" in os.environ
local = range(ranks // 2 * host, ranks // 2 * (host + 1)) if address else range(ranks)
cores = sorted(os.sched_getaffinity(0))
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="|".join(str(cores[rank % len(cores)]) for rank in local),
    VLLM_NO_USAGE_STATS="1",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # for the question to the workers
)
if address or is_launched:
    # vLLM itself finds this address only if there is a route to the Internet.
    os.environ["VLLM_HOST_IP"] = socket.gethostbyname(socket.gethostname())


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


def run_ranks_of_second_host(options: dict[str, Any]) -> None:
    """Does what `vllm serve MODEL --headless --nnodes 2 --node-rank 1 …` does."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    config = EngineArgs(**options).create_engine_config(headless=True)
    MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)


def main() -> None:
    from vllm import LLM, SamplingParams

    if not folder.exists():
        make_model()
    options: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "tensor_parallel_size": ranks,
        "distributed_executor_backend": "external_launcher" if is_launched else "mp",
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 64,
        "max_num_seqs": 2,
    }
    if address:
        options |= {"nnodes": 2, "node_rank": host, "master_addr": address, "master_port": 29501}
    if host > 0:
        run_ranks_of_second_host(options)
        return
    model = LLM(**options)
    asked = SamplingParams(temperature=0, max_tokens=24, min_tokens=24, detokenize=False)
    (found,) = model.generate({"prompt_token_ids": list(range(7))}, asked, use_tqdm=False)
    print(f"RESULT {sorted(model.collective_rpc(communicator))}: {list(found.outputs[0].token_ids)}", flush=True)


if __name__ == "__main__":
    main()
