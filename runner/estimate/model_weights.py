"""A configuration -> its models without data: their weights, counted, with bytes and shapes."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from runner.config.build import build
from runner.config.experiment import AdapterPart, Experiment, Part
from runner.model.architecture import modality_of
from runner.model.check_tuning import OUTPUT_LAYERS
from runner.model.clone import Source
from runner.model.load import auto_class, read_adapter
from runner.model.node import LOADER
from runner.schema.text import Node, nodes
from runner.training.components.model import build_tuner
from runner.training.components.start_model import path_of

OF_REWARDS = ("outcome.load_reward_model", "outcome.Classifier", "process.ProcessModel")
LOADERS = (LOADER, *(f"runner.reward.{name}" for name in OF_REWARDS))
NOT_ARCHITECTURE = ("_target_", "tokenizer", "head", "dtype", "seed")
# Bytes of a quantised weight beside its bits: one scale of 4 bytes for 64 weights, or with double
# quantisation one of 1 byte, and another of 4 for 256 of those.
SCALE = 4 / 64
SCALE_OF_SCALES = 1 / 64 + 4 / (64 * 256)
NOT_QUANTISED = ("lora_", "modules_to_save", *OUTPUT_LAYERS)


@dataclass(frozen=True)
class Shape:
    """Sizes by which the cost of a pass grows."""

    layers: int
    hidden: int
    heads: int
    width: float  # of all that enters and leaves the matrices of a layer
    weights: float  # that a token is multiplied with, without embeddings
    head: int  # weights of the output layer, which are counted apart

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Shape":
        """The shape of a model, by its matrices and its text config."""
        config = model.config.get_text_config()
        experts_per_token = getattr(config, "num_experts_per_tok", None)
        width = 0.0
        weights = 0.0
        for matrix in _layer_matrices(model):
            used = 1
            if matrix.dim() == 3:  # a matrix for each expert, of which a token meets only some
                used = min(experts_per_token or len(matrix), len(matrix))
            outputs, inputs = matrix.shape[-2:]
            width += used * (outputs + inputs)
            weights += used * inputs * outputs
        layers = max(1, getattr(config, "num_hidden_layers", 1))
        heads = getattr(config, "num_attention_heads", None) or 1
        output_weight = getattr(model.get_output_embeddings(), "weight", torch.empty(0))
        return cls(
            layers=layers,
            hidden=config.hidden_size,
            heads=heads,
            width=width / layers,
            weights=weights,
            head=output_weight.numel(),
        )


def _layer_matrices(model: PreTrainedModel) -> Iterator[Tensor]:
    """The weights of at least two dimensions in the layers of a model, without its embeddings."""
    trunk = next(trunks_of(model))
    for part in trunk.modules():
        if isinstance(part, nn.Embedding):
            continue
        for weight in part.parameters(recurse=False):
            if weight.dim() > 1:
                yield weight


def trunks_of(model: nn.Module) -> Iterator[PreTrainedModel]:
    """The models inside a model that hold its layers and no further model."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            models = [inner for inner in part.modules() if isinstance(inner, PreTrainedModel)]
            if models == [part]:
                yield part


class ModelWeights:
    """The weights of a source as a run loads it, with the adapter of a ``peft`` node.

    Without ``trained`` all are frozen, and there is no adapter.
    ``count`` and ``bytes`` are of all weights, the latter as they are in memory; ``trained`` and
    ``trained_bytes`` are of those that are trained, which ``learned`` lists; ``largest`` is the
    bytes of the largest weight that is dequantised, 0 where none is.
    """

    def __init__(
        self,
        source: Source,
        *,
        dtype: str,
        peft: AdapterPart | None = None,
        quant: Part | None = None,
        trained: bool = True,
    ):
        config = copy.deepcopy(source.config())
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        if source.head == "score":
            config.num_labels = 1
        if dtype == "auto":
            self.dtype = getattr(config, "dtype", None) or torch.float32
        else:
            self.dtype = getattr(torch, dtype)
        with torch.device("meta"):
            kind = auto_class(config.to_dict(), source.head)
            base = kind.from_config(config, dtype=self.dtype, trust_remote_code=source.trust)
            base.requires_grad_(trained)
            self.shape = Shape.of(base)  # before the adapter's matrices are there
            model = _adapted(base, peft, source) if trained else base
        self.text = config.get_text_config()
        self.is_adapted = hasattr(model, "peft_config")

        weights = list(model.parameters())
        self.learned = [weight for weight in weights if weight.requires_grad]
        self.count = sum(weight.numel() for weight in weights)
        self.trained = sum(weight.numel() for weight in self.learned)
        self.trained_bytes = sum(weight.nbytes for weight in self.learned)
        quantised = _quantised_weights(base) if quant else set()
        size = 0.0
        self.largest = 0
        for weight in weights:
            if quant and id(weight) in quantised:
                size += weight.numel() * _bits_per_weight(quant.node) / 8
                self.largest = max(self.largest, weight.nbytes)
            else:
                size += weight.nbytes
        self.bytes = int(size)

        head = base.get_output_embeddings()
        self.head_is_trained = False
        self.is_tied = False
        if head is not None:
            self.head_is_trained = any(weight.requires_grad for weight in head.parameters())
            self.is_tied = head.weight is base.get_input_embeddings().weight


def _bits_per_weight(quant: Node) -> float:
    """The bits of a quantised weight, with its share of the scales."""
    if quant.get("load_in_8bit"):
        return 8
    scale = SCALE_OF_SCALES if quant.get("bnb_4bit_use_double_quant") else SCALE
    return 4 + 8 * scale


def _quantised_weights(model: PreTrainedModel) -> set[int]:
    """The ids of the weights of linear layers that bitsandbytes quantises."""
    quantised = set()
    for name, part in model.named_modules():
        is_left_out = any(word in name for word in NOT_QUANTISED)
        if isinstance(part, nn.Linear) and not is_left_out:
            quantised.add(id(part.weight))
    return quantised


def _adapted(
    model: PreTrainedModel, peft: AdapterPart | None, source: Source
) -> PreTrainedModel | PeftModel:
    """The model with the configured adapter, or else with the one in its own folder."""
    if peft is not None:
        model, config = build_tuner(peft, model, source.head)
    elif source.path:
        config = copy.deepcopy(read_adapter(source.path, source.revision))
    else:
        config = None
    if config is None:
        return model
    config.inference_mode = False
    if isinstance(getattr(config, "init_lora_weights", None), str):
        # Such a start takes weights apart, which are not there; the adapter's size is the same.
        config.init_lora_weights = True
    return get_peft_model(model, config)


def source_of(experiment: Experiment) -> Source:
    """The source of a run's policy."""
    model = experiment.model
    head = experiment.trainer.head
    path = path_of(experiment).get("path")
    if path:
        return Source(path, model.revision, model.trusts_code, head)
    return Source(head=head, architecture=architecture_of(model.node))


def architecture_of(node: Node) -> dict[str, Any]:
    """The keys of a new model's architecture; its vocabulary is its tokenizer's by default."""
    keys = {key: value for key, value in node.items() if key not in NOT_ARCHITECTURE}
    has_parts = modality_of(keys) is not None
    text = keys
    if has_parts:
        text = keys.get("text_config") or {}
    vocabulary = {}
    if "vocab_size" not in text:
        tokenizer = build(node["tokenizer"])
        vocabulary["vocab_size"] = len(tokenizer)
    if has_parts:
        return keys | {"text_config": vocabulary | text}
    return keys | vocabulary


def others_of(experiment: Experiment) -> Iterator[tuple[str, int]]:
    """The names and bytes of models that are only asked: reward models and a teacher."""
    groups = {group: experiment.node.get(group) for group in ("reward", "trainer")}
    for key, node in nodes(groups):
        path = node.get("path")
        if node["_target_"] not in LOADERS or not isinstance(path, str):
            continue
        head = "score" if key.startswith("reward") else "lm"
        is_trusted = bool(node.get("trust_remote_code"))
        source = Source(path, node.get("revision"), is_trusted, head)
        weights = ModelWeights(source, dtype=node.get("dtype", "float32"), trained=False)
        name = key.removeprefix("trainer.").removesuffix("_model").replace(".", " ")
        yield name, weights.bytes
    reward_path = experiment.trainer.args.get("reward_model_path")
    if reward_path:
        weights = ModelWeights(Source(reward_path, head="score"), dtype="float32", trained=False)
        yield "reward model", weights.bytes
