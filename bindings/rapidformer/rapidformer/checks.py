"""Checks of the command line, before anything starts. They import no framework."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from .options import SHARDING, InputError

POSITIVE = (
    *("epochs", "train_iters", "micro_batch_size", "global_batch_size", "seq_length", "max_position_embeddings"),
    *("num_layers", "hidden_size", "num_attention_heads", "lr_decay_iters", "log_interval", "eval_interval"),
    *("eval_iters", "save_interval", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
)
SHARES = ("mask_prob", "short_seq_prob", "lr_warmup_fraction")


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def check(args: Namespace, size: int) -> None:
    """Raises InputError for the first thing that is wrong with the options of a job of `size` processes."""
    _check_numbers(args)
    _check_what_to_train(args)
    _check_switches(args, size)
    _check_model(args)
    _check_batches(args, size)
    _check_files(args)


def _check_numbers(args: Namespace) -> None:
    for name in POSITIVE:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"{option(name)} {value} is less than 1")
    for name in SHARES:
        value = getattr(args, name)
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{option(name)} {value} is not between 0 and 1")
    if args.lr_warmup_iters is not None and args.lr_warmup_fraction is not None:
        raise InputError("--lr-warmup-iters and --lr-warmup-fraction exclude each other; give one of them")
    if args.min_lr > args.lr:
        raise InputError(f"--min-lr {args.min_lr:g} is more than --lr {args.lr:g}")
    split_parts(args.split)


def split_parts(text: str) -> list[float]:
    """Returns the shares of training, validation and test, which add up to 1."""
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3 or min(parts) < 0 or parts[0] == 0:
        raise InputError(f"--split {text} is not one to three numbers with commas, for example 980,20")
    parts += [0.0] * (3 - len(parts))
    return [part / sum(parts) for part in parts]


def _check_what_to_train(args: Namespace) -> None:
    if (args.task is None) == (args.user_script is None):
        raise InputError("give one of --task and --user-script")
    if args.epochs is not None and args.train_iters is not None:
        raise InputError("--epochs and --train-iters exclude each other; give one of them")
    if args.task is None:
        return
    if args.data_path is None:
        raise InputError(f"--task {args.task} needs --data-path")
    if args.pretrained_model_name_or_path is None:
        raise InputError(f"--task {args.task} needs --pretrained-model-name-or-path")
    if args.task == "pretraining":
        if args.train_iters is None:
            raise InputError("--task pretraining needs --train-iters")
        if args.seq_length is None:
            raise InputError("--task pretraining needs --seq-length")
        if args.data_impl != "mmap":
            raise InputError(
                "--task pretraining needs --data-impl mmap; `python -m rapidformer.preprocess` makes such data"
            )
    elif args.data_impl is not None:
        raise InputError(f"--data-impl {args.data_impl} is for --task pretraining, not for --task {args.task}")
    if args.pipeline_model_parallel_size > 1:
        raise InputError(
            f"--pipeline-model-parallel-size {args.pipeline_model_parallel_size} needs a model in stages, and --task "
            f"{args.task} has none; give a --user-script whose model_optimizer_lr_scheduler_provider takes pre_process "
            "and post_process"
        )


def _check_switches(args: Namespace, size: int) -> None:
    sharding = [option(name) for name in SHARDING if getattr(args, name)]
    if len(sharding) > 1:
        raise InputError(f"{' and '.join(sharding)} exclude each other; give one of them")
    tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    if sharding and tensor * pipeline > 1:
        name = "tensor" if tensor > 1 else "pipeline"
        raise InputError(f"{sharding[0]} and --{name}-model-parallel-size exclude each other; give one of them")
    if args.onnx_runtime_training and tensor * pipeline > 1:
        raise InputError("--onnx-runtime-training does not compile a model that processes divide; leave it out")
    if size % (tensor * pipeline):
        raise InputError(
            f"{size} processes cannot be divided into groups of --tensor-model-parallel-size {tensor} times "
            f"--pipeline-model-parallel-size {pipeline}; start a multiple of {tensor * pipeline}"
        )


def _check_model(args: Namespace) -> None:
    heads, width, tensor = args.num_attention_heads, args.hidden_size, args.tensor_model_parallel_size
    if heads is not None and width is not None and width % heads:
        raise InputError(f"--hidden-size {width} is not a multiple of --num-attention-heads {heads}")
    if heads is not None and heads % tensor:
        raise InputError(f"--num-attention-heads {heads} is not a multiple of --tensor-model-parallel-size {tensor}")
    stages = args.pipeline_model_parallel_size
    if args.num_layers is not None and args.num_layers % stages:
        raise InputError(f"--num-layers {args.num_layers} is not a multiple of --pipeline-model-parallel-size {stages}")
    positions = args.max_position_embeddings
    if args.seq_length is not None and positions is not None and args.seq_length > positions:
        raise InputError(f"--seq-length {args.seq_length} is more than --max-position-embeddings {positions}")


def _check_batches(args: Namespace, size: int) -> None:
    replicas = size // (args.tensor_model_parallel_size * args.pipeline_model_parallel_size)
    step = args.micro_batch_size * replicas
    if args.global_batch_size is not None and args.global_batch_size % step:
        raise InputError(
            f"--global-batch-size {args.global_batch_size} is not a multiple of --micro-batch-size "
            f"{args.micro_batch_size} times {replicas} data-parallel processes, which is {step}"
        )


def _check_files(args: Namespace) -> None:
    for name in ("user_script", "vocab_file", "merge_file"):
        value = getattr(args, name)
        if value is not None and not Path(value).is_file():
            raise InputError(f"there is no file {value} ({option(name)})")
    if args.data_impl == "mmap" and args.data_path is not None:
        for ending in (".idx", ".bin"):
            if not Path(args.data_path + ending).is_file():
                raise InputError(
                    f"there is no file {args.data_path}{ending} (--data-path is the name without .bin and .idx); "
                    "`python -m rapidformer.preprocess` makes both"
                )
    elif args.data_path is not None and _is_path(args.data_path) and not Path(args.data_path).exists():
        raise InputError(f"there is no data set {args.data_path} (--data-path)")
    model = args.pretrained_model_name_or_path
    if model is not None and _is_path(model) and not Path(model).exists():
        raise InputError(f"there is no folder {model} (--pretrained-model-name-or-path)")
    # A job that is started again by the same command finds its own checkpoints, and at its first start none.
    if args.load is not None and args.load != args.save and not Path(args.load).is_dir():
        raise InputError(f"there is no folder {args.load} (--load)")


def _is_path(name: str) -> bool:
    """Returns whether this is the name of a file or folder, and not one of a hub (`glue`, `owner/name`)."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1
