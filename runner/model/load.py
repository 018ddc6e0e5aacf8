"""Tokenizers and models, from a folder, from the hub, or new of an architecture; an adapter is loaded onto its base."""

import logging
import pkgutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from huggingface_hub import snapshot_download
from peft import PeftConfig, PeftModel
from peft.utils.constants import SEQ_CLS_HEAD_NAMES
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import has_file

from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError, causes_of, check_library, describe, fault
from runner.io.hub import is_of_network
from runner.model import check
from runner.model.adapter_files import fault_of_extra, fault_of_lacking, find_adapter_weight_faults
from runner.model.chat import set_template, turn_end
from runner.model.check import Vocabulary
from runner.model.encoding import processor_of, stop_ids, tokenizer_of
from runner.model.folder import ADAPTER, CONFIGS, PROCESSORS, ModelFolder, find_folder, override
from runner.schema.text import Node, read_tables

HEADS = {"lm": transformers.AutoModelForCausalLM, "score": transformers.AutoModelForSequenceClassification}
HEADS |= {"see": transformers.AutoModelForImageTextToText}  # of "lm", where the model sees
# Failures of libraries, translated into four beats. Memory that runs out goes on as it was raised.
KNOWN, PADS = read_tables(__file__).values()

log = logging.getLogger(__name__)


def auto_class(config: Node, head: str) -> Any:
    """The class that makes a model with a head of what a config says; one that sees comes with all of its parts."""
    return HEADS["see" if head == "lm" and check.sees(config) else head]


@contextmanager
def translate_model_errors(
    path: str, revision: str | None = None, part: str = "model", changed: ModelFolder | None = None
) -> Iterator[None]:
    """Inside, a known failure to load ``path`` is raised as an error with four beats.

    It may be due to the keys that are set otherwise in the config of ``changed``.
    """
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        for known in KNOWN:
            kinds = tuple(map(pkgutil.resolve_name, known["kinds"]))
            for cause in causes_of(error):
                if isinstance(cause, kinds) and known.get("words", "") in str(cause):
                    values = {"path": path, "revision": revision, "message": str(cause).strip().split("\n")[0]}
                    values["kind"] = type(cause).__name__
                    beats = [known[beat].format(**values) for beat in ("found", "expected", "fix")]
                    blamed = EnvironmentFault if known.get("environment") else ConfigError
                    refusal = Fault(f"{part}.{known.get('key', 'path')}", *beats)
                    if changed and changed.overrides and known.get("of_config"):
                        where, fix = check.blame_overrides(changed)
                        refusal = replace(refusal, where=where, fix=f"{fix}; if that does not help, {refusal.fix}")
                    raise blamed(refusal) from error
        if is_of_network(error):
            raise EnvironmentFault(fault("model.no_hub", part=part, path=path, error=describe(error))) from error
        raise


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

    Tokens may be added, as is a pad token that is not there: ``new_tokens`` of the tokenizer names them for
    ``load_model``. Without a pad token, one that never ends a text is taken, else the end token. ``chat_template``
    names one that ships, or a ``.jinja`` file; None leaves the tokenizer's own, or none.
    """
    folder = fetch(path, "model.tokenizer", revision)
    if folder.base and not folder.has("tokenizer_config.json"):
        folder = fetch(folder.base[0], "model.tokenizer", folder.base[1])
    # Without the first file it is the architecture that names the kind of tokenizer.
    if not folder.has("tokenizer_config.json") and folder.has("config.json"):
        ConfigError.refuse(check.find_config_faults(folder, trust=trust_remote_code))
    with translate_model_errors(folder.source, folder.revision, "model.tokenizer"):
        how = {"revision": folder.revision, "trust_remote_code": trust_remote_code}
        kind = transformers.AutoProcessor if folder.has(*PROCESSORS) else transformers.AutoTokenizer
        tokenizer = tokenizer_of(processor := kind.from_pretrained(folder.source, **how))
        tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ConfigError(fault("model.no_vocabulary", path=path))  # as of some classes whose files are missing
    node = {"add_tokens": add_tokens, "add_special_tokens": add_special_tokens, "eos_token": eos_token}
    ConfigError.refuse(check.find_token_faults(node | {"pad_token": pad_token}, _vocabulary_of(tokenizer)))
    tokenizer.add_tokens(add_tokens or [])
    pad = [] if pad_token is None or pad_token in tokenizer.get_vocab() else [pad_token]
    tokenizer.add_tokens([*(add_special_tokens or ()), *pad], special_tokens=True)
    if new := [*check.new_tokens(node), *filter(None, [pad_token])]:
        tokenizer.new_tokens = new
    for token in new:
        if (text := tokenizer.decode(tokenizer.convert_tokens_to_ids([token]))).strip() != token.strip():
            raise ConfigError(fault("model.spoilt_token", token=token, text=text))
    vocabulary = _vocabulary_of(tokenizer)
    if eos_token is not None:
        tokenizer.eos_token = eos_token
    if tokenizer.eos_token is None:
        raise ConfigError(fault("model.no_end_token", marks=vocabulary.marks or "no special token"))
    if pad_token is not None:
        tokenizer.pad_token = pad_token
    elif tokenizer.pad_token is None:
        free = [token for token in PADS if token in vocabulary.tokens and token != tokenizer.eos_token]
        tokenizer.pad_token = free[0] if free else tokenizer.eos_token
        reason = "it ends no text" if free else "the vocabulary has no other candidate"
        log.info("pad token: %s, because %s", tokenizer.pad_token, reason)
    set_template(tokenizer, chat_template)
    if processor is not tokenizer:
        processor.chat_template, tokenizer.processor = tokenizer.chat_template, processor
    return tokenizer


def _vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    used = {tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token}
    added, template = tokenizer.added_tokens_decoder, str(tokenizer.chat_template or "")
    return Vocabulary(tokenizer.get_vocab(), added, used, template, getattr(tokenizer, "new_tokens", ()))


def load_model(
    path: str,
    *,
    tokenizer: PreTrainedTokenizerBase,
    head: str = "lm",
    revision: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32",
    attention: str | None = None,
    config: dict[str, Any] | None = None,
    device_map: str | dict | None = None,
    trust_remote_code: bool = False,
    quantization_config: Any = None,
    safetensors_only: bool = True,
    merge: bool = False,
    seed: int = 0,
) -> PreTrainedModel | PeftModel:
    """A model whose special tokens are the tokenizer's; with ``head="score"``, one score per text.

    Full fine-tuning wants float32 weights: of bfloat16 ones, 20 steps of DPO at a learning rate of 1e-6 moved 2 %, the
    other updates being rounded away. A path with an adapter gives its base with the adapter on it, ready to be trained
    further, or with ``merge`` a whole model, for a new adapter or none. ``config`` holds keys of its config to be set
    otherwise. ``seed`` draws the weights of a new score head, and of the rows of tokens that are new to the tokenizer.
    """
    check_quantization(quantization_config)
    folder = replace(fetch(path, "model", revision), overrides=config or {})
    ConfigError.refuse(check.find_merge_faults(folder, quantized=bool(quantization_config)) if merge else [])
    how = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype), "attn_implementation": attention}
    how |= {"device_map": device_map, "trust_remote_code": trust_remote_code}
    how |= {"quantization_config": quantization_config, "use_safetensors": True if safetensors_only else None}
    load = _load_whole if folder.adapter is None else _load_adapter
    model = load(folder, head, seed, _vocabulary_of(tokenizer), how)
    if merge:
        model = model.merge_and_unload().requires_grad_(True)
    floating = ((name, each) for name, each in model.named_parameters() if each.is_floating_point() and each.numel())
    with torch.no_grad():
        here = ((name, each) for name, each in floating if not each.is_meta)
        unsound = [name for name, each in here if not all(map(torch.isfinite, torch.aminmax(each)))]
    if unsound:  # what is trained from them is none, either
        raise ConfigError(fault("model.not_finite", folder=folder, count=len(unsound), example=unsound[0]))
    padding = model.config.get_text_config().pad_token_id
    adopt_tokens(model, tokenizer)
    if head == "score" and folder.adapter is None and _is_scorer(folder):
        model.config.get_text_config().pad_token_id = padding  # it says at which token the head was trained
    for part in model.modules():
        # bitsandbytes would repack 4-bit weights at a first evaluation on CPUs with bfloat16. Its kernel for the packed
        # form has no backward pass: later steps would fail, or have wrong gradients below that layer.
        if hasattr(part, "support_avx512bf16_for_cpu"):
            part.support_avx512bf16_for_cpu = False
    return model


def _is_scorer(folder: ModelFolder) -> bool:
    """True for a folder whose model came with a head for scores, which is then not new."""
    return any("SequenceClassification" in name for name in folder.whole_config.get("architectures") or ())


def fetch(path: str, part: str = "model", revision: str | None = None) -> ModelFolder:
    """The folder at this path, or the snapshot of a model of the hub, its configs downloaded if need be."""
    if folder := find_folder(path, f"{part}.path"):
        return folder
    with translate_model_errors(path, revision, part):
        folder = snapshot_download(path, revision=revision, allow_patterns=list(CONFIGS))
    return ModelFolder(Path(folder), f"{part}.path", path, revision)


def read_adapter(path: str, revision: str | None = None) -> PeftConfig | None:
    """The config of the adapter at this path, or None where a whole model is."""
    folder = fetch(path, "model", revision)
    if folder.adapter is None:
        return None
    with translate_model_errors(folder.source, folder.revision):
        return PeftConfig.from_pretrained(str(folder.path))


def read_config(path: str, revision: str | None = None, trust_remote_code: bool = False) -> PretrainedConfig:
    """The config of the model at this path, or that of the base of an adapter."""
    folder = fetch(path, "model", revision)
    if folder.base:
        folder = fetch(folder.base[0], "model", folder.base[1])
    ConfigError.refuse(check.find_config_faults(folder, trust=trust_remote_code))
    with translate_model_errors(folder.source, folder.revision):
        how = {"revision": folder.revision, "trust_remote_code": trust_remote_code}
        return AutoConfig.from_pretrained(folder.source, **how)


def check_quantization(quantization_config: object) -> None:
    """Raise EnvironmentFault where a quantised model is asked for and bitsandbytes is missing."""
    if quantization_config:
        check_library("bitsandbytes", "quant")


def _load_whole(folder: ModelFolder, head: str, seed: int, known: Vocabulary, how: Node) -> PreTrainedModel:
    """A model and every one of its weights, all from one commit; only a score head and rows of tokens may be new."""
    ConfigError.refuse(check.find_config_faults(folder, head, trust=how["trust_remote_code"]))
    labels = {"num_labels": 1} if head == "score" else {}
    own: dict[str, Any] = {"revision": folder.commit, "output_loading_info": True}
    own |= {"config": _overridden(folder, labels, how["trust_remote_code"])} if folder.overrides else labels
    translated = translate_model_errors(folder.source, folder.revision, changed=folder)
    with translated, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = auto_class(folder.whole_config if folder.has("config.json") else {}, head)
        model, report = made.from_pretrained(folder.source, **own, **how)
        rows = model.get_input_embeddings().num_embeddings
        ConfigError.refuse(check.find_size_faults(known, rows))
        added = [number for number, token in known.added.items() if token.content in known.new]
        if max(added, default=0) >= rows:
            torch.manual_seed(seed)
            model.resize_token_embeddings(max(added) + 1, mean_resizing=not next(model.parameters()).is_meta)
    new = SEQ_CLS_HEAD_NAMES if head == "score" else ()
    missing = sorted(name for name in report["missing_keys"] if name.split(".")[0] not in new)
    if missing:
        raise ConfigError(fault("model.missing_weights", folder=folder, count=len(missing), example=missing[0]))
    return model


def _overridden(folder: ModelFolder, labels: Mapping[str, int], trust: bool) -> PretrainedConfig:
    config = read_config(folder.source, folder.revision, trust)
    try:
        changed = type(config).from_dict(override(config.to_dict(), folder.overrides), **labels)
    except Exception as error:  # each class checks its values, and raises what it likes
        raise ConfigError(fault("model.refused_overrides", error=describe(error))) from error
    changed._commit_hash = getattr(config, "_commit_hash", None)
    return changed


def _load_adapter(folder: ModelFolder, head: str, seed: int, known: Vocabulary, how: Node) -> PeftModel:
    with translate_model_errors(folder.source, folder.revision):
        is_safe = not how["use_safetensors"] or has_file(folder.source, ADAPTER, revision=folder.revision)
        adapter = PeftConfig.from_pretrained(str(folder.path))
    faults = list(check.find_adapter_faults(folder, head, is_safe=is_safe))
    if adapter.is_prompt_learning:
        faults.append(fault("model.learnt_prompt", folder=folder, base=adapter.base_model_name_or_path))
    ConfigError.refuse(faults or find_adapter_weight_faults(folder))
    base = replace(fetch(adapter.base_model_name_or_path, "model", adapter.revision), overrides=folder.overrides)
    has_own = folder.has("tokenizer_config.json") and base.has("config.json")
    if has_own and max(known.added, default=0) >= base.config.get("vocab_size", 0):
        before = load_tokenizer(base.source, revision=base.revision).get_vocab()
        known = replace(known, new={*known.tokens} - before.keys())  # which were added for the adapter
    model = _load_whole(base, head, seed, known, how)
    how_to_find = {"is_trainable": True, "revision": folder.revision}
    with translate_model_errors(folder.source, folder.revision), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found missing adapter keys")  # which are an error below
        adapted = PeftModel.from_pretrained(model, folder.source, **how_to_find)
        # Once more, because only this tells which weights there are none of, and which fit nothing.
        report = adapted.load_adapter(folder.source, "default", **how_to_find)
    if report.missing_keys:
        raise ConfigError(fault_of_lacking(folder, report.missing_keys))
    if report.unexpected_keys:
        raise ConfigError(fault_of_extra(folder, report.unexpected_keys))
    return adapted


def convert_names(model: PreTrainedModel, weights: dict[str, Any], prefix: str, *_: object) -> None:
    """Give saved weights, in place, the names and shapes that the model has; else a trainer would pass over them."""
    if not prefix and (other := weights.keys() - model.state_dict().keys()):
        how = {"config": model.config, "state_dict": dict(weights), "dtype": model.dtype, "output_loading_info": True}
        found, report = type(model).from_pretrained(None, **how)
        made = {name: weight for name, weight in found.state_dict().items() if name not in report["missing_keys"]}
        for name in other:
            del weights[name]
        weights.update(made | weights)


def adopt_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make the model pad, begin and end as the tokenizer does; further end tokens stay."""
    model.register_load_state_dict_pre_hook(convert_names)
    config = model.config.get_text_config()
    generation = getattr(model, "generation_config", None)  # a score head generates nothing
    for holder in filter(None, (config, generation)):
        holder.pad_token_id = tokenizer.pad_token_id
        if tokenizer.bos_token_id is not None:
            holder.bos_token_id = tokenizer.bos_token_id
    end, held = tokenizer.eos_token_id, config.eos_token_id
    config.eos_token_id = [*dict.fromkeys([end, *held])] if isinstance(held, list) else end
    if generation is None:
        return
    ends = list(dict.fromkeys([end, *stop_ids(model)]))
    generation.eos_token_id = ends if len(ends) > 1 else end
    mark = turn_end(tokenizer)
    if mark and not {*ends} & {*tokenizer.encode(mark, add_special_tokens=False)}:
        found = "the chat template ends an answer with %r, the tokenizer with %r: generation would not stop there; "
        log.warning(found + "type model.tokenizer.eos_token=<the template's mark>", mark, tokenizer.eos_token)


def hold_places(model: PreTrainedModel | PeftModel) -> None:
    """Give each weight on ``meta`` one zero for all of its places, until it is handed out by the process that read it.

    accelerate knows the weights of an optimizer by their addresses, which those on ``meta`` do not have.
    """
    for part in model.modules():
        for name, weight in [*part.named_parameters(recurse=False)]:
            if weight.is_meta:
                zeros = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
                setattr(part, name, torch.nn.Parameter(zeros, weight.requires_grad))
    model.tie_weights()


def new_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    model_type: str,
    head: str = "lm",
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32",
    seed: int = 0,
    **architecture: Any,
) -> PreTrainedModel:
    """A model with weights drawn from ``seed``, keys of its config in ``architecture``, and the tokenizer's tokens."""
    if head == "score":
        architecture = {"num_labels": 1} | architecture
    try:
        default = AutoConfig.for_model(model_type)
    except ValueError:
        raise ConfigError(fault("model.unknown_architecture", kind=model_type)) from None
    known = {*vars(default), *default.attribute_map, "num_labels"}
    ConfigError.refuse(check.find_unknown_keys("model", model_type, architecture, known))
    tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    own = {"vocab_size": len(tokenizer)}
    if check.sees({"model_type": model_type} | architecture):  # the words are those of one of its parts
        architecture["text_config"] = own | (architecture.get("text_config") or {}) | tokens
        own, tokens = {}, {"image_token_id": getattr(processor_of(tokenizer), "image_token_id", None)}
        ConfigError.refuse([fault("model.no_processor")] if tokens["image_token_id"] is None else [])
    config = AutoConfig.for_model(model_type, **own | architecture, **tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = auto_class(config.to_dict(), head)
        model = made.from_config(config, dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype))
    ConfigError.refuse(check.find_size_faults(_vocabulary_of(tokenizer), model.get_input_embeddings().num_embeddings))
    adopt_tokens(model, tokenizer)
    return model
