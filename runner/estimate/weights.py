"""A configuration -> its models without data: how many weights there are, which are trained, their bytes and shapes."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from runner.config.build import build
from runner.model.check import LOADER, OUTPUT_LAYERS, sees
from runner.model.clone import Source
from runner.model.load import auto_class, read_adapter
from runner.schema import upstream
from runner.schema.text import Config, Node, nodes
from runner.training.components.model import build_tuner, path_of

OF_REWARDS = ("outcome.load_reward_model", "outcome.Classifier", "process.ProcessModel")
LOADERS = (LOADER, *(f"runner.reward.{name}" for name in OF_REWARDS))
NOT_ARCHITECTURE = ("_target_", "tokenizer", "head", "dtype", "seed")
# Bytes of a quantised weight beside its bits: one scale of 4 bytes for 64 weights, or with double quantisation one of
# 1 byte, and another of 4 for 256 of those.
SCALE, SCALE_OF_SCALES = 4 / 64, 1 / 64 + 4 / (64 * 256)
NOT_QUANTISED = ("lora_", "modules_to_save", *OUTPUT_LAYERS)


@dataclass(frozen=True)
class Shape:
    """Sizes by which the cost of a pass grows."""

    layers: int
    hidden: int
    heads: int
    width: float  # of all that enters and leaves the matrices of a layer
    weights: float  # that a token is multiplied with, without embeddings
    head: int  # its weights, which are apart

    @staticmethod
    def of(model: PreTrainedModel) -> "Shape":
        text = model.config.get_text_config()
        chosen = getattr(text, "num_experts_per_tok", None)
        width = weights = 0.0
        parts = [part for part in next(trunks_of(model)).modules() if not isinstance(part, nn.Embedding)]
        for each in (each for part in parts for each in part.parameters(recurse=False) if each.dim() > 1):
            experts = min(chosen or len(each), len(each)) if each.dim() == 3 else 1
            width += experts * sum(each.shape[-2:])
            weights += experts * each.shape[-1] * each.shape[-2]
        layers, heads = max(1, getattr(text, "num_hidden_layers", 1)), getattr(text, "num_attention_heads", None) or 1
        head = getattr(model.get_output_embeddings(), "weight", torch.empty(0)).numel()
        return Shape(layers, text.hidden_size, heads, width / layers, weights, head)


def trunks_of(model: nn.Module) -> Iterator[PreTrainedModel]:
    """The models inside a model that hold its layers and no further model."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and sum(isinstance(each, PreTrainedModel) for each in part.modules()) == 1:
            yield part


class ModelWeights:
    """The weights of a source as a run loads it, with the adapter of a ``peft`` node; frozen unless ``trained``.

    ``bytes`` are those in memory, ``trained`` the numbers and bytes of the weights that are trained, ``largest`` the
    bytes of the largest weight that is dequantised, 0 where none is.
    """

    def __init__(
        self, source: Source, *, dtype: str, peft: Node | None = None, quant: Node | None = None, trained: bool = True
    ):
        config = copy.deepcopy(source.config())
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        if source.head == "score":
            config.num_labels = 1
        self.dtype = (getattr(config, "dtype", None) or torch.float32) if dtype == "auto" else getattr(torch, dtype)
        with torch.device("meta"):
            kind = auto_class(config.to_dict(), source.head)
            made = kind.from_config(config, dtype=self.dtype, trust_remote_code=source.trust)
            made.requires_grad_(trained)
            self.shape = Shape.of(made)
            model = _adapted(made, peft, source) if trained else made
        scale = SCALE_OF_SCALES if quant and quant.get("bnb_4bit_use_double_quant") else SCALE
        bits = 0 if not quant else 8 if quant.get("load_in_8bit") else 4 + 8 * scale  # of a quantised weight
        head = made.get_output_embeddings()
        weights = {id(each): each for each in model.parameters()}.values()
        linear = {name: part for name, part in made.named_modules() if bits and isinstance(part, nn.Linear)}
        small = {id(part.weight) for name, part in linear.items() if not any(word in name for word in NOT_QUANTISED)}
        self.learned = [each for each in weights if each.requires_grad]
        self.count = sum(each.numel() for each in weights)
        self.bytes = int(sum(each.numel() * bits / 8 if id(each) in small else each.nbytes for each in weights))
        self.largest = max((each.nbytes for each in weights if id(each) in small), default=0)
        self.trained = sum(each.numel() for each in self.learned)
        self.trained_bytes = sum(each.nbytes for each in self.learned)
        self.text, self.is_adapted = config.get_text_config(), hasattr(model, "peft_config")
        self.head_is_trained = head is not None and any(each.requires_grad for each in head.parameters())
        self.is_tied = head is not None and head.weight is made.get_input_embeddings().weight


def _adapted(model: PreTrainedModel, peft: Node | None, source: Source) -> PreTrainedModel | PeftModel:
    if peft is None:
        config = copy.deepcopy(read_adapter(source.path, source.revision)) if source.path else None
    else:
        model, config = build_tuner(peft, model, source.head)
    if config is None:
        return model
    config.inference_mode = False
    if isinstance(getattr(config, "init_lora_weights", None), str):
        config.init_lora_weights = True  # of the same size, without taking weights apart that are not there
    return get_peft_model(model, config)


def source_of(cfg: Config) -> Source:
    """The source of a run's policy."""
    model, head = cfg["model"], cfg["trainer"]["head"]
    if path := path_of(cfg).get("path"):
        return Source(path, model.get("revision"), bool(model.get("trust_remote_code")), head)
    return Source(head=head, architecture=architecture_of(model))


def architecture_of(node: Node) -> dict[str, Any]:
    """The keys of a new model's architecture, its vocabulary being that of its tokenizer if nothing else is said."""
    own = {key: value for key, value in node.items() if key not in NOT_ARCHITECTURE}
    part = own.get("text_config") or {} if sees(own) else own
    words = {} if "vocab_size" in part else {"vocab_size": len(build(node["tokenizer"]))}
    return own | ({"text_config": words | part} if sees(own) else words)


def others_of(cfg: Config) -> Iterator[tuple[str, int]]:
    """Models that are only asked: reward models and a teacher, by name with their bytes."""
    for path, node in nodes({group: cfg.get(group) for group in ("reward", "trainer")}):
        if node["_target_"] in LOADERS and isinstance(node.get("path"), str):
            head = "score" if path.startswith("reward") else "lm"
            source = Source(node["path"], node.get("revision"), bool(node.get("trust_remote_code")), head)
            name = path.removeprefix("trainer.").removesuffix("_model").replace(".", " ")
            yield name, ModelWeights(source, dtype=node.get("dtype", "float32"), trained=False).bytes
    if path := cfg["trainer"]["args"].get(upstream.REWARD_MODEL_PATH):
        yield "reward model", ModelWeights(Source(path, head="score"), dtype="float32", trained=False).bytes
