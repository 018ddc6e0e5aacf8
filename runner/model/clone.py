"""Models in the place of large ones: random ones to try out a run, and placeholders.

The random ones train on a CPU in a second; a placeholder is never trained.

Only the config, the generation settings and the tokenizer are read; no weights are. How sizes are
made small stands in ``small_config``.
"""

import contextlib
import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftConfig, get_peft_model
from transformers import (
    AutoConfig,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from runner.errors import ConfigError, Fault
from runner.io.files import JsonObject, shipped
from runner.model.architecture import modality_of
from runner.model.encoding import processor_of
from runner.model.load import auto_class, fetch, new_model, read_adapter, read_config
from runner.model.model_files import PROCESSORS
from runner.model.small_config import shorten, shrink
from runner.schema.modality import MODALITIES
from runner.schema.text import Node

# Models for other tasks than language modelling, by the ends of their class names.
TASK_CLASSES = {
    "SequenceClassification": transformers.AutoModelForSequenceClassification,
    "TokenClassification": transformers.AutoModelForTokenClassification,
}
PEFT_TASKS = {"SEQ_CLS": "SequenceClassification", "TOKEN_CLS": "TokenClassification"}
MAX_SHORTENED_WEIGHTS = 200_000_000  # weights of a clone that only has fewer layers
# A model for its vocabulary alone. Of any architecture the data is prepared alike; only that is the
# tokenizer's.
PLACEHOLDER: JsonObject = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1_048_576,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Source:
    """The origin of a model: a path, or keys of an architecture; ``head`` is lm or score."""

    path: str = ""
    revision: str | None = None
    trust: bool = False
    head: str = "lm"
    architecture: Node | None = None

    def config(self) -> PretrainedConfig:
        """The config of the model, or that of the base of an adapter.

        Only the small file of it is read.
        """
        if self.architecture is not None:
            return AutoConfig.for_model(**self.architecture)
        return read_config(self.path, self.revision, self.trust)


# --- Written to a folder ------------------------------------------------------------------------


def write_clone(source: Source, folder: Path) -> str:
    """Write a small random model like this one into a folder, with its tokenizer.

    Returns a description of it.

    Of an adapter its base is made small, under a new one of its kind. Raises ConfigError where that
    cannot be.
    """
    adapter = read_adapter(source.path, source.revision) if source.path else None
    if adapter:
        return _write_adapter_clone(source, adapter, folder)
    config = source.config()
    model = small_model(config, source.trust)
    if model is None:
        raise ConfigError(
            Fault(
                where="model.path",
                found=f"{source.path}: a {config.model_type}, which cannot be made small",
                expected="an architecture of transformers",
                fix="model=tiny, to rehearse everything but the architecture",
            )
        )
    if source.path:
        with contextlib.suppress(OSError):  # without such a file a model stops at the config's end
            model.generation_config = GenerationConfig.from_pretrained(
                shipped(source.path), revision=source.revision or "main"
            )
        _copy_tokenizer(source, folder)
    model.save_pretrained(folder)
    text = model.config.get_text_config()
    layers = f"{text.num_hidden_layers} layers of {text.hidden_size}"
    millions = _count(model) / 1e6
    return f"{text.model_type}, {layers}, {millions:.1f} M weights"


def _write_adapter_clone(source: Source, adapter: PeftConfig, folder: Path) -> str:
    """Write a new adapter of a kind for a small model like its base, which is written beside it."""
    base = replace(source, path=adapter.base_model_name_or_path, revision=adapter.revision)
    base_folder = folder.with_name(f"{folder.name}-base")
    description = write_clone(base, base_folder)
    config = copy.deepcopy(adapter)
    config.inference_mode = False
    config.base_model_name_or_path = str(base_folder)
    config.revision = None
    small_settings: JsonObject = {
        "r": 4,
        "layers_to_transform": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "init_lora_weights": True,
    }
    for name, value in small_settings.items():
        if hasattr(config, name):
            setattr(config, name, value)
    # Written as TaskType.SEQ_CLS or as its value.
    task = PEFT_TASKS.get(str(config.task_type).rpartition(".")[2], "")
    kind = TASK_CLASSES.get(task, transformers.AutoModelForCausalLM)
    labels = {"num_labels": 1} if task == "SequenceClassification" else {}
    model = get_peft_model(kind.from_pretrained(base_folder, **labels), config)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    _copy_tokenizer(source, folder)
    return f"{description}, with a new adapter"


def _copy_tokenizer(source: Source, folder: Path) -> None:
    """Copy the tokenizer of a model, or its processor, where it has one that loads."""
    has_processor = fetch(source.path, revision=source.revision).has(*PROCESSORS)
    kind = transformers.AutoProcessor if has_processor else transformers.AutoTokenizer
    with contextlib.suppress(OSError, ValueError):
        processor = kind.from_pretrained(
            shipped(source.path), revision=source.revision, trust_remote_code=source.trust
        )
        processor.save_pretrained(folder)


def write_placeholder(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model of a few weights that has a tokenizer's vocabulary, with the tokenizer.

    Some trainers load such a model by its path, only to prepare data.
    """
    model = new_model(tokenizer, **PLACEHOLDER)
    processor = processor_of(tokenizer)
    for modality in MODALITIES:
        if modality.is_read_by(processor):  # by this token some trainers see that a model reads it
            setattr(model.config, modality.token_key, getattr(processor, modality.token_key))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


# --- In memory ----------------------------------------------------------------------------------


def count_weights(config: PretrainedConfig, trust: bool = False) -> int:
    """The number of weights that a model of this config has; none is made for that."""
    with torch.device("meta"):
        return _count(auto_class_of(config).from_config(config, trust_remote_code=trust))


def _count(model: PreTrainedModel) -> int:
    return sum(weight.numel() for weight in model.parameters())


def auto_class_of(config: PretrainedConfig) -> Any:
    """The class that makes the model of a config.

    It is a causal language model where the config says nothing else.
    """
    architectures = getattr(config, "architectures", None) or [""]
    task = architectures[0].rpartition("For")[2]
    return TASK_CLASSES.get(task) or auto_class(config.to_dict(), "lm")


def small_model(config: PretrainedConfig, trust: bool = False) -> PreTrainedModel | None:
    """A random model that can read: small in every way, or else with fewer layers.

    None where it fails, or stays large.
    """
    # An architecture may have a rule of its own for its sizes, which only its code knows.
    if not modality_of(config.to_dict()):
        with contextlib.suppress(Exception):
            return _make_readable(shrink(config), trust)
    # The sizes of a model that sees have to go together with the processor, which stays as it is.
    with contextlib.suppress(Exception):
        short = shorten(config)
        if count_weights(short, trust) <= MAX_SHORTENED_WEIGHTS:
            return _make_readable(short, trust)
    return None


def _make_readable(config: PretrainedConfig, trust: bool) -> PreTrainedModel:
    """A random model of a config that has read a text; raises what the architecture raises."""
    dtype = getattr(config, "dtype", None) or torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = auto_class_of(config).from_config(config, dtype=dtype, trust_remote_code=trust)
    with torch.no_grad():
        model.eval()(input_ids=torch.arange(1, 7).unsqueeze(0))
    return model
