"""Models of the built-in tasks: from a folder with weights, from a config alone, or by name from a hub."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from . import state
from .options import InputError

# The names of these options in the configs of transformers.
SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "max_position_embeddings": "max_position_embeddings",
}
CLASSES = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
}
WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


def make_config(args: Namespace, **options: Any) -> Any:
    """Returns the config of the model with the sizes that the command line gives."""
    from transformers import AutoConfig

    name = args.pretrained_model_name_or_path
    sizes = {ours: getattr(args, ours) for ours in SIZES if getattr(args, ours) is not None}
    if sizes and has_weights(name) and args.task != "pretraining":
        raise InputError(
            f"{name} has weights, so --{next(iter(sizes)).replace('_', '-')} cannot change the model's sizes"
        )
    try:
        config = AutoConfig.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{name} is no model: {str(error).splitlines()[0]} (--pretrained-model-name-or-path)"
        ) from None
    for ours, size in sizes.items():
        theirs = config.attribute_map.get(SIZES[ours], SIZES[ours])
        if not hasattr(config, theirs):
            raise InputError(f"--{ours.replace('_', '-')}: {type(config).__name__} has no {SIZES[ours]}")
        setattr(config, theirs, size)
    if "hidden_size" in sizes and hasattr(config, "intermediate_size"):
        config.intermediate_size = 4 * config.hidden_size
    if {"hidden_size", "num_attention_heads"} & sizes.keys() and getattr(config, "head_dim", None) is not None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    if "num_attention_heads" in sizes and hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = config.num_attention_heads
    return config


def has_weights(name: str) -> bool:
    folder = Path(name)
    return folder.is_dir() and any(next(folder.glob(pattern), None) is not None for pattern in WEIGHTS)


def is_masked(config: Any) -> bool:
    """Returns whether language modeling with this model predicts masked tokens rather than next ones."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    architectures = " ".join(getattr(config, "architectures", None) or [])
    return "CausalLM" not in architectures and config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def make_model(args: Namespace, **options: Any) -> Any:
    """Makes the model of --task."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = make_config(args, **options)
    config.use_cache = False
    if args.task == "pretraining":
        kind = "AutoModelForPreTraining" if is_masked(config) else "AutoModelForCausalLM"
        return getattr(transformers, kind).from_config(config)
    default = "AutoModelForMaskedLM" if is_masked(config) else "AutoModelForCausalLM"
    made = getattr(transformers, CLASSES.get(args.task, default))
    name = args.pretrained_model_name_or_path
    if Path(name).is_dir() and not has_weights(name):
        state.get_logger().info("%s has no weights: a new model", name)
        return made.from_config(config)
    return made.from_pretrained(name, config=config, dtype="float32")
