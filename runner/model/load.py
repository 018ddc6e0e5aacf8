"""Tokenizers and models: from a folder, from the hub, or new of an architecture.

An adapter comes on its base; peft is imported where there is one.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import transformers
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import has_file

from runner.errors import ConfigError, Fault, check_library, describe
from runner.io.files import JsonObject
from runner.model import faults
from runner.model.adapter_files import (
    SCORE_HEADS,
    fault_of_extra,
    fault_of_lacking,
    find_adapter_faults,
    find_adapter_weight_faults,
)
from runner.model.architecture import find_unknown_keys, modality_of
from runner.model.chat import set_template, turn_end
from runner.model.check_config import find_config_faults
from runner.model.check_tokenizer import (
    Vocabulary,
    find_size_faults,
    find_token_faults,
    new_tokens,
)
from runner.model.check_weights import missing_weights
from runner.model.encoding import processor_of, stop_ids, tokenizer_of
from runner.model.load_errors import check_finite, translate_model_errors
from runner.model.model_files import (
    ADAPTER,
    CONFIGS,
    PROCESSORS,
    ModelFolder,
    find_folder,
    override,
)
from runner.schema.modality import Modality
from runner.schema.text import Node

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

DtypeName = Literal["float32", "bfloat16", "float16", "auto"]

AUTO_CLASSES = {
    "lm": transformers.AutoModelForCausalLM,
    "score": transformers.AutoModelForSequenceClassification,
}
# Tokens that may pad, the best first; one that ends texts is passed over.
PAD_TOKENS = (
    "<|finetune_right_pad_id|>",
    "<|padding|>",
    "<|pad|>",
    "<pad>",
    "[PAD]",
    "<|endoftext|>",
    "<unk>",
)

log = logging.getLogger(__name__)


def auto_class(config: Node, head: str) -> Any:
    """The class that makes a model of a config with a head.

    A model of media and text comes with all of its parts.
    """
    modality = modality_of(config)
    if head == "lm" and modality:
        return getattr(transformers, modality.model_class)
    return AUTO_CLASSES[head]


# --- Tokenizers ---------------------------------------------------------------------------------


def load_tokenizer(
    path: str,
    *,
    revision: str | None = None,
    chat_template: str | None = None,
    pad_token: str | None = None,
    eos_token: str | None = None,
    add_tokens: list[str] | None = None,
    add_special_tokens: list[str] | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """A tokenizer that can pad, ends texts, and spells chats with a template that was tried.

    Tokens may be added, as is a pad token that is not there: ``new_tokens`` of the tokenizer names
    them for ``load_model``. Without a pad token, one that never ends a text is taken, else the end
    token. ``chat_template`` names one that ships, or a ``.jinja`` file; None leaves the tokenizer's
    own, or none.
    """
    processor = _load_processor(path, revision, trust_remote_code)
    tokenizer = tokenizer_of(processor)
    # Some classes make an empty tokenizer where their files are missing.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ConfigError(
            Fault(
                where="model.tokenizer.path",
                found=f"{path} holds no vocabulary",
                expected="tokenizer.json",
                fix="=<folder or org/name>",
            )
        )
    node = {
        "add_tokens": add_tokens,
        "add_special_tokens": add_special_tokens,
        "eos_token": eos_token,
        "pad_token": pad_token,
    }
    ConfigError.refuse(find_token_faults(node, _vocabulary_of(tokenizer)))
    _add_tokens(tokenizer, node)
    vocabulary = _vocabulary_of(tokenizer)
    if eos_token is not None:
        tokenizer.eos_token = eos_token
    if tokenizer.eos_token is None:
        raise ConfigError(faults.no_end_token(vocabulary.marks))
    if pad_token is not None:
        tokenizer.pad_token = pad_token
    elif tokenizer.pad_token is None:
        # A pad token that ends no text, or else the end token.
        tokenizer.pad_token = tokenizer.eos_token
        reason = "the vocabulary has no other candidate"
        for token in PAD_TOKENS:
            if token in vocabulary.tokens and token != tokenizer.eos_token:
                tokenizer.pad_token = token
                reason = "it does not end a text"
                break
        log.info("pad token: %s, because %s", tokenizer.pad_token, reason)
    set_template(tokenizer, chat_template)
    if processor is not tokenizer:
        processor.chat_template = tokenizer.chat_template
        tokenizer.processor = processor
    return tokenizer


def _load_processor(path: str, revision: str | None, trust_remote_code: bool) -> Any:
    """The tokenizer at a path, or its processor where it has one.

    An adapter without a tokenizer has that of its base.
    """
    folder = fetch(path, "model.tokenizer", revision)
    if folder.base and not folder.has("tokenizer_config.json"):
        folder = fetch(folder.base.path, "model.tokenizer", folder.base.revision)
    # Without the first file it is the architecture that names the kind of tokenizer.
    if not folder.has("tokenizer_config.json") and folder.has("config.json"):
        ConfigError.refuse(find_config_faults(folder, trust=trust_remote_code))
    with translate_model_errors(folder.source, folder.revision, "model.tokenizer"):
        has_processor = folder.has(*PROCESSORS)
        kind = transformers.AutoProcessor if has_processor else transformers.AutoTokenizer
        processor = kind.from_pretrained(
            folder.source, revision=folder.revision, trust_remote_code=trust_remote_code
        )
        tokenizer = tokenizer_of(processor)
        tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
    return processor


def _vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """The tokens of a loaded tokenizer, with the special ones that it writes by itself."""
    used = {
        tokenizer.pad_token,
        tokenizer.bos_token,
        tokenizer.eos_token,
        tokenizer.unk_token,
    }
    return Vocabulary(
        tokens=tokenizer.get_vocab(),
        added=tokenizer.added_tokens_decoder,
        used=used,
        template=str(tokenizer.chat_template or ""),
        new=getattr(tokenizer, "new_tokens", ()),
    )


def _add_tokens(tokenizer: PreTrainedTokenizerBase, node: Node) -> None:
    """Add the tokens of a node, and its pad token if it is new.

    Raises ConfigError for a token that the tokenizer would write otherwise.
    """
    pad_token = node["pad_token"]
    tokenizer.add_tokens(node["add_tokens"] or [])
    special_tokens = list(node["add_special_tokens"] or ())
    if pad_token is not None and pad_token not in tokenizer.get_vocab():
        special_tokens.append(pad_token)
    tokenizer.add_tokens(special_tokens, special_tokens=True)
    new = new_tokens(node)
    if pad_token:
        new.append(pad_token)
    if new:
        tokenizer.new_tokens = new
    for token in new:
        text = tokenizer.decode(tokenizer.convert_tokens_to_ids([token]))
        if text.strip() != token.strip():
            found = f"{token}, which the tokenizer would write as {text!r}"
            raise ConfigError(
                Fault(
                    where="model.tokenizer.add_tokens",
                    found=f"{found}, because its characters stand for others",
                    expected="a token that is written as it is read, such as one in ASCII",
                    fix="=[<token>]",
                )
            )


# --- Models -------------------------------------------------------------------------------------


def load_model(
    path: str,
    *,
    tokenizer: PreTrainedTokenizerBase,
    head: str = "lm",
    revision: str | None = None,
    dtype: DtypeName = "float32",
    attention: str | None = None,
    config: dict[str, Any] | None = None,
    device_map: str | dict[str, Any] | None = None,
    trust_remote_code: bool = False,
    quantization_config: Any = None,
    safetensors_only: bool = True,
    merge: bool = False,
    seed: int = 0,
) -> PreTrainedModel | PeftModel:
    """A model whose special tokens are the tokenizer's; with ``head="score"``, one score per text.

    Full fine-tuning wants float32 weights: of bfloat16 ones, 20 steps of DPO at a learning rate of
    1e-6 moved 2 %, the other updates being rounded away. A path with an adapter gives its base with
    the adapter on it, ready to be trained further, or with ``merge`` a whole model, for a new
    adapter or none; it is quantised after that. ``config`` holds keys of its config to be set
    otherwise. ``seed`` draws the weights of a new score head, and of the rows of tokens that are
    new to the tokenizer.
    """
    check_quantization(quantization_config)
    folder = replace(fetch(path, "model", revision), overrides=config or {})
    merges = merge and folder.adapter is not None
    arguments = {
        "dtype": dtype if dtype == "auto" else getattr(torch, dtype),
        "attn_implementation": attention,
        "device_map": device_map,
        "trust_remote_code": trust_remote_code,
        "quantization_config": None if merges else quantization_config,
        "use_safetensors": True if safetensors_only else None,
    }
    vocabulary = _vocabulary_of(tokenizer)
    if folder.adapter is None:
        model = _load_whole(folder, head, seed, vocabulary, arguments)
    else:
        model = _load_adapter(folder, head, seed, vocabulary, arguments, merges=merges)
    check_finite(model, folder)
    if merges:
        from runner.model.adapter import merge_adapter, quantise

        model = merge_adapter(model).requires_grad_(True)
        if quantization_config:
            model = quantise(model, quantization_config, device_map)
    text_config = model.config.get_text_config()
    padding = text_config.pad_token_id
    adopt_tokens(model, tokenizer)
    if head == "score" and folder.adapter is None:
        architectures = folder.whole_config.get("architectures") or ()
        if any("SequenceClassification" in name for name in architectures):
            # The pad token of a trained head says at which token it was trained to score.
            text_config.pad_token_id = padding
    for module in model.modules():
        # bitsandbytes would repack 4-bit weights at a first evaluation on CPUs with bfloat16. Its
        # kernel for the packed form has no backward pass: later steps would fail, or have wrong
        # gradients below that layer.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def check_quantization(quantization_config: object) -> None:
    """Raise EnvironmentFault where a quantised model is asked for and bitsandbytes is missing."""
    if quantization_config:
        check_library("bitsandbytes", "quant")


def fetch(path: str, part: str = "model", revision: str | None = None) -> ModelFolder:
    """The folder at this path, or the snapshot of a model of the hub.

    The configs of a snapshot are downloaded if need be.
    """
    folder = find_folder(path, f"{part}.path")
    if folder:
        return folder
    with translate_model_errors(path, revision, part):
        snapshot = snapshot_download(path, revision=revision, allow_patterns=list(CONFIGS))
    return ModelFolder(Path(snapshot), f"{part}.path", path, revision)


def read_adapter(path: str, revision: str | None = None) -> PeftConfig | None:
    """The config of the adapter at this path, or None where a whole model is."""
    folder = fetch(path, "model", revision)
    if folder.adapter is None:
        return None
    from peft import PeftConfig

    with translate_model_errors(folder.source, folder.revision):
        return PeftConfig.from_pretrained(str(folder.path))


def read_config(
    path: str, revision: str | None = None, trust_remote_code: bool = False
) -> PretrainedConfig:
    """The config of the model at this path, or that of the base of an adapter."""
    folder = fetch(path, "model", revision)
    if folder.base:
        folder = fetch(folder.base.path, "model", folder.base.revision)
    ConfigError.refuse(find_config_faults(folder, trust=trust_remote_code))
    with translate_model_errors(folder.source, folder.revision):
        return AutoConfig.from_pretrained(
            folder.source, revision=folder.revision, trust_remote_code=trust_remote_code
        )


def _load_whole(
    folder: ModelFolder, head: str, seed: int, vocabulary: Vocabulary, arguments: Node
) -> PreTrainedModel:
    """A model and every one of its weights, all from one commit.

    Only a score head and the rows of new tokens may be new.
    """
    trust = arguments["trust_remote_code"]
    ConfigError.refuse(find_config_faults(folder, head, trust=trust))
    own_arguments: JsonObject = {"num_labels": 1} if head == "score" else {}
    if folder.overrides:
        own_arguments = {"config": _read_overridden_config(folder, own_arguments, trust)}
    config = folder.whole_config if folder.has("config.json") else {}
    translated = translate_model_errors(folder.source, folder.revision, changed=folder)
    with translated, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, report = auto_class(config, head).from_pretrained(
            folder.source,
            revision=folder.commit,
            output_loading_info=True,
            **own_arguments,
            **arguments,
        )
        rows = model.get_input_embeddings().num_embeddings
        ConfigError.refuse(find_size_faults(vocabulary, rows))
        new_ids = [n for n, token in vocabulary.added.items() if token.content in vocabulary.new]
        size = max(new_ids, default=-1) + 1
        if size > rows:
            torch.manual_seed(seed)
            # A model without values has no mean to draw new rows around.
            has_values = not next(model.parameters()).is_meta
            model.resize_token_embeddings(size, mean_resizing=has_values)
    may_be_new = SCORE_HEADS if head == "score" else ()
    missing = [name for name in report["missing_keys"] if name.split(".")[0] not in may_be_new]
    if missing:
        fault = missing_weights(folder, len(missing), min(missing))
        raise ConfigError(fault)
    return model


def _read_overridden_config(
    folder: ModelFolder, labels: JsonObject, trust: bool
) -> PretrainedConfig:
    """The config of a model with the overrides.

    Raises ConfigError where they do not go together.
    """
    config = read_config(folder.source, folder.revision, trust)
    values = override(config.to_dict(), folder.overrides)
    try:
        changed = type(config).from_dict(values, **labels)
    except Exception as error:  # each class checks its values, and raises what it likes
        raise ConfigError(
            Fault(
                where="model.config",
                found=describe(error),
                expected="values that go together",
                fix="leave it out",
            )
        ) from error
    changed._commit_hash = getattr(config, "_commit_hash", None)
    return changed


def _load_adapter(
    folder: ModelFolder,
    head: str,
    seed: int,
    vocabulary: Vocabulary,
    arguments: Node,
    *,
    merges: bool,
) -> PeftModel:
    """The base of an adapter with the adapter on it, of which no weight is missing or left over.

    One that is merged may be of a language model where the head gives scores: it is in the layers.
    """
    from peft import PeftConfig, PeftModel

    with translate_model_errors(folder.source, folder.revision):
        is_safe = not arguments["use_safetensors"] or has_file(
            folder.source, ADAPTER, revision=folder.revision
        )
        adapter = PeftConfig.from_pretrained(str(folder.path))
    adapter_faults = list(find_adapter_faults(folder, head, is_safe=is_safe, merges=merges))
    if adapter.is_prompt_learning:
        adapter_faults.append(
            Fault(
                where="model.path",
                found=f"{folder.source} holds a learnt prompt, which peft cannot train any further",
                fix=f"={adapter.base_model_name_or_path}",
            )
        )
    ConfigError.refuse(adapter_faults or find_adapter_weight_faults(folder))
    base = fetch(adapter.base_model_name_or_path, "model", adapter.revision)
    base = replace(base, overrides=folder.overrides)
    has_own_tokenizer = folder.has("tokenizer_config.json") and base.has("config.json")
    last_added = max(vocabulary.added, default=0)
    if has_own_tokenizer and last_added >= base.config.get("vocab_size", 0):
        # The tokens that the tokenizer of the base lacks were added for the adapter.
        base_tokens = load_tokenizer(base.source, revision=base.revision).get_vocab()
        vocabulary = replace(vocabulary, new=set(vocabulary.tokens) - base_tokens.keys())
    model = _load_whole(base, head, seed, vocabulary, arguments)
    revision = folder.revision
    with translate_model_errors(folder.source, revision), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found missing adapter keys")  # which are an error below
        if merges and head == "score":
            adapter.task_type = None  # peft would look for the methods of a language model
        adapted = PeftModel.from_pretrained(
            model, folder.source, is_trainable=True, config=adapter, revision=revision
        )
        # Once more, because only this tells which weights there are none of, and which fit nothing.
        report = adapted.load_adapter(
            folder.source, "default", is_trainable=True, revision=revision
        )
    if report.missing_keys:
        raise ConfigError(fault_of_lacking(folder, report.missing_keys))
    if report.unexpected_keys:
        raise ConfigError(fault_of_extra(folder, report.unexpected_keys))
    return adapted


# --- Models and their tokenizers ----------------------------------------------------------------


def convert_names(
    model: PreTrainedModel, weights: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Give saved weights, in place, the names and shapes that the model has.

    A trainer that resumes would otherwise pass over them.
    """
    if prefix:
        return
    unknown = weights.keys() - model.state_dict().keys()
    if not unknown:
        return
    loaded, report = type(model).from_pretrained(
        None,
        config=model.config,
        state_dict=dict(weights),
        dtype=model.dtype,
        output_loading_info=True,
    )
    for name in unknown:
        del weights[name]
    for name, weight in loaded.state_dict().items():
        if name not in report["missing_keys"]:
            weights.setdefault(name, weight)


def adopt_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make the model pad, begin and end as the tokenizer does; further end tokens stay."""
    model.register_load_state_dict_pre_hook(convert_names)
    config = model.config.get_text_config()
    generation = getattr(model, "generation_config", None)  # a score head generates nothing
    for settings in filter(None, (config, generation)):
        settings.pad_token_id = tokenizer.pad_token_id
        if tokenizer.bos_token_id is not None:
            settings.bos_token_id = tokenizer.bos_token_id
    end = tokenizer.eos_token_id
    if isinstance(config.eos_token_id, list):
        config.eos_token_id = list(dict.fromkeys([end, *config.eos_token_id]))
    else:
        config.eos_token_id = end
    if generation is None:
        return
    ends = list(dict.fromkeys([end, *stop_ids(model)]))
    generation.eos_token_id = ends if len(ends) > 1 else end
    mark = turn_end(tokenizer)
    if not mark:
        return
    mark_ids = tokenizer.encode(mark, add_special_tokens=False)
    if not set(ends) & set(mark_ids):
        log.warning(
            "the chat template ends an answer with %r, the tokenizer with %r: generation would not "
            "stop there; type model.tokenizer.eos_token=<the template's mark>",
            mark,
            tokenizer.eos_token,
        )


def new_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    model_type: str,
    head: str = "lm",
    dtype: DtypeName = "float32",
    seed: int = 0,
    **architecture: Any,
) -> PreTrainedModel:
    """A model with weights drawn from ``seed``, and the tokenizer's tokens.

    ``architecture`` holds the keys of its config.
    """
    try:
        default = AutoConfig.for_model(model_type)
    except ValueError:
        raise ConfigError(faults.unknown_architecture(model_type)) from None
    known = {*vars(default), *default.attribute_map, "num_labels"}
    ConfigError.refuse(find_unknown_keys("model", model_type, architecture, known))
    if head == "score":
        architecture.setdefault("num_labels", 1)
    text_keys = {"vocab_size": len(tokenizer)}
    tokens = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    modality = modality_of({"model_type": model_type} | architecture)
    if modality:
        # The words are those of one of its parts.
        text_config = architecture.get("text_config") or {}
        architecture["text_config"] = text_keys | text_config | tokens
        tokens = {modality.token_key: _media_token_of(tokenizer, modality)}
    else:
        architecture = text_keys | architecture
    config = AutoConfig.for_model(model_type, **architecture, **tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch_dtype = torch.float32
        if dtype != "auto":
            torch_dtype = getattr(torch, dtype)
        model_class = auto_class(config.to_dict(), head)
        model = model_class.from_config(config, dtype=torch_dtype)
    rows = model.get_input_embeddings().num_embeddings
    ConfigError.refuse(find_size_faults(_vocabulary_of(tokenizer), rows))
    adopt_tokens(model, tokenizer)
    return model


def _media_token_of(tokenizer: PreTrainedTokenizerBase, modality: Modality) -> int:
    """The token in whose place the processor of a tokenizer puts media of a kind.

    Raises ConfigError where the tokenizer has no such processor.
    """
    token_id: int | None = getattr(processor_of(tokenizer), modality.token_key, None)
    if token_id is None:
        raise ConfigError(
            Fault(
                where="model.tokenizer.path",
                found=f"a tokenizer without a processor of {modality.many}",
                expected=f"one with a processor_config.json, because the model {modality.verb}",
                fix="=runner://model/tiny_vision",
            )
        )
    return token_id
