"""Tokenizers and models, from a folder, from the hub, or made anew from an architecture.

An adapter as ``path`` is loaded onto its base. The adapters that training adds are put on by the
trainer; ``reference`` copies the reference, and ``freeze`` chooses what stays as it is.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftConfig, PeftModel
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from peft.utils.constants import SEQ_CLS_HEAD_NAMES
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import find_adapter_config_file, has_file, resolve_revision

from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.files import shipped
from runner.model.chat import set_template, turn_end
from runner.model.fault import LOCATION, retold

HEADS = {"lm": AutoModelForCausalLM, "score": AutoModelForSequenceClassification}
TASKS = {"lm": "CAUSAL_LM", "score": "SEQ_CLS"}  # what peft calls the heads
PRECISIONS = ("float32", "bfloat16", "float16", "auto")
# Tokens that may pad, the best first; one that ends texts is passed over.
PADS = (
    "<|finetune_right_pad_id|>",
    "<|padding|>",
    "<|pad|>",
    "<pad>",
    "[PAD]",
    "<|endoftext|>",
    "<unk>",
)

log = logging.getLogger(__name__)


# --- Tokenizer ----------------------------------------------------------------------------------


def load_tokenizer(
    path: str,
    *,
    revision: str | None = None,
    chat_template: str | None = None,
    pad_token: str | None = None,
    eos_token: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """A tokenizer that can pad, ends texts, and spells chats with a template that was tried.

    Tokens are chosen among those it has, because new ones would need new rows in the model. Without
    a pad token, one that never ends a text is taken, else the end token. ``chat_template`` names a
    shipped template or a ``.jinja`` file; None leaves the tokenizer's own, or none.
    """
    home, revision = _tokenizer_home(_locate(path, "model.tokenizer"), revision)
    with retold(home, revision, "model.tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(home, revision=revision, trust_remote_code=trust_remote_code)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        # Where the files are missing, some classes come back with an empty vocabulary.
        found, cure = f"{path} holds no vocabulary", "model.tokenizer.path=<folder or org/name>"
        raise ConfigError(Fault("model.tokenizer.path", found, "tokenizer.json", cure))
    _set_end(tokenizer, eos_token)
    _set_pad(tokenizer, pad_token)
    set_template(tokenizer, chat_template)
    return tokenizer


def _tokenizer_home(path: str, revision: str | None) -> tuple[str, str | None]:
    """Where the tokenizer is: an adapter without one stands for its base model."""
    with retold(path, revision, "model.tokenizer"):
        own = has_file(path, "tokenizer_config.json", revision=revision)
    adapter = None if own else read_adapter(path, revision)
    if adapter is None:
        return path, revision
    return shipped(adapter.base_model_name_or_path), adapter.revision


def _set_end(tokenizer: PreTrainedTokenizerBase, wanted: str | None) -> None:
    if wanted is not None:
        tokenizer.eos_token = _known_token(tokenizer, wanted, "eos_token")
    if tokenizer.eos_token is None:
        marks = ", ".join(tokenizer.all_special_tokens) or "no special token at all"
        raise ConfigError(
            Fault(
                "model.tokenizer.eos_token",
                "the tokenizer has no token that ends a text, so nothing would ever stop",
                f"a token of its vocabulary (it marks {marks})",
                "model.tokenizer.eos_token=<token>",
            )
        )


def _set_pad(tokenizer: PreTrainedTokenizerBase, wanted: str | None) -> None:
    if wanted is not None:
        tokenizer.pad_token = _known_token(tokenizer, wanted, "pad_token")
    if tokenizer.pad_token is not None:
        return
    vocabulary = tokenizer.get_vocab()
    free = [token for token in PADS if token in vocabulary and token != tokenizer.eos_token]
    tokenizer.pad_token = free[0] if free else tokenizer.eos_token
    reason = "it ends no text" if free else "the vocabulary has no other candidate"
    log.info("pad token: %s, because %s", tokenizer.pad_token, reason)


def _known_token(tokenizer: PreTrainedTokenizerBase, token: str, key: str) -> str:
    if token in tokenizer.get_vocab():
        return token
    where, marks = f"model.tokenizer.{key}", ", ".join(tokenizer.all_special_tokens)
    raise ConfigError(Fault(where, f"{token} is not in the vocabulary", f"such as {marks}", f"{where}=<token>"))


# --- Model --------------------------------------------------------------------------------------


def load_model(
    path: str,
    *,
    tokenizer: PreTrainedTokenizerBase,
    head: str = "lm",
    revision: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32",
    attention: str | None = None,
    device_map: str | dict | None = None,
    trust_remote_code: bool = False,
    quantization_config: Any = None,
    safetensors_only: bool = True,
    merge: bool = False,
    seed: int = 0,
) -> PreTrainedModel | PeftModel:
    """A model whose special tokens are the tokenizer's; with ``head="score"``, one score per text.

    Full fine-tuning wants float32 weights: of bfloat16 ones, 20 steps of DPO at a learning rate of
    1e-6 moved 2 %, the other updates being rounded away. A path with an adapter gives its base with
    the adapter on it, ready to be trained further, or with ``merge`` a whole model, for an adapter anew or none.
    ``seed`` draws the weights of a new score head.
    """
    _check_choices(head, dtype)
    check_quantization(quantization_config)
    home = _locate(path, "model")
    how = dict(
        dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        attn_implementation=attention,
        device_map=device_map,
        trust_remote_code=trust_remote_code,
        quantization_config=quantization_config,
        use_safetensors=True if safetensors_only else None,
    )
    adapter = read_adapter(home, revision)
    if merge:
        _check_merge(path, adapter, quantization_config)
    if adapter is None:
        model = _load_whole(home, revision, head, seed, how)
    else:
        model = _load_adapter(home, revision, adapter, head, seed, how)
    if merge:
        model = model.merge_and_unload().requires_grad_(True)
    _check_vocabulary(model, tokenizer)
    adopt_tokens(model, tokenizer)
    _keep_layout(model)
    return model


def find_commit(path: str, revision: str | None = None) -> str | None:
    """The commit that a model of the hub has now at this revision; None for a folder."""
    return getattr(resolve_revision(shipped(path), revision), "resolved", None)


def read_adapter(path: str, revision: str | None = None) -> PeftConfig | None:
    """The config of the adapter at this path, or None where a whole model is."""
    path = shipped(path)
    with retold(path, revision):
        if find_adapter_config_file(path, revision=revision) is None:
            return None
        return PeftConfig.from_pretrained(path, revision=revision)


def check_quantization(quantization_config: Any) -> None:
    """Raise EnvironmentFault where a quantised model is asked for and bitsandbytes is missing.

    Takes the config node too, because the quantisation config itself cannot be built without it.
    """
    if quantization_config and importlib.util.find_spec("bitsandbytes") is None:
        raise EnvironmentFault(Fault("quant", "bitsandbytes is not installed", "", "pip install 'runner[quant]'"))


def _locate(path: str, part: str) -> str:
    """The folder of this machine, or the name on the hub; a folder that is missing is a fault."""
    home = Path(shipped(str(path))).expanduser()
    if home.exists():
        return str(home)
    if str(path).startswith(("/", ".", "~", "runner://")) or str(path).count("/") > 1:
        cure = f"{part}.path=<folder or org/name>"
        raise ConfigError(Fault(f"{part}.path", f"there is no folder {home}", LOCATION, cure))
    return str(path)


def _check_choices(head: str, dtype: str) -> None:
    faults = []
    if head not in HEADS:
        faults.append(Fault("trainer.head", head, " or ".join(HEADS), "trainer.head=lm"))
    if dtype not in PRECISIONS:
        faults.append(Fault("model.dtype", dtype, ", ".join(PRECISIONS), "model.dtype=float32"))
    if faults:
        raise ConfigError(faults)


def _check_merge(path: str, adapter: PeftConfig | None, quantization_config: Any) -> None:
    faults = []
    if adapter is None:
        faults.append(Fault("model.merge", f"true, and {path} is no adapter", "an adapter", "model.merge=false"))
    if quantization_config:
        found = "true, and merging into quantised weights would round the adapter away"
        faults.append(Fault("model.merge", found, "weights in full precision", "quant=none"))
    if faults:
        raise ConfigError(faults)


def _load_whole(path: str, revision: str | None, head: str, seed: int, how: dict[str, Any]) -> PreTrainedModel:
    """A model and every one of its weights, all from one commit; only a score head may be new."""
    own = {"num_labels": 1} if head == "score" else {}
    with retold(path, revision), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, report = HEADS[head].from_pretrained(
            path,
            revision=find_commit(path, revision) or revision,
            output_loading_info=True,
            **own,
            **how,
        )
    new = SEQ_CLS_HEAD_NAMES if head == "score" else ()
    missing = sorted(name for name in report["missing_keys"] if name.split(".")[0] not in new)
    if missing:
        found = f"{path} lacks {len(missing)} weights, such as {missing[0]}"
        raise ConfigError(
            Fault(
                "model.path",
                f"{found}; they would be random",
                "weights for the whole of config.json",
                "model.path=<another folder>",
            )
        )
    return model


def _load_adapter(
    path: str,
    revision: str | None,
    adapter: PeftConfig,
    head: str,
    seed: int,
    how: dict[str, Any],
) -> PeftModel:
    """The adapter at this path on the base that it names, trainable."""
    faults = []
    with retold(path, revision):
        safe = has_file(path, SAFETENSORS_WEIGHTS_NAME, revision=revision)
    if how["use_safetensors"] and not safe:
        found, cure = f"{path} has no {SAFETENSORS_WEIGHTS_NAME}", "model.safetensors_only=false"
        faults.append(Fault("model.path", found, "an adapter in a safetensors file", cure))
    if adapter.task_type != TASKS[head]:
        found = f"{path} is an adapter for {adapter.task_type}"
        faults.append(Fault("model.path", found, f"{TASKS[head]}, which this trainer trains"))
    if adapter.is_prompt_learning:
        found = f"{path} holds a learnt prompt, which peft cannot train any further"
        cure = f"model.path={adapter.base_model_name_or_path}"
        faults.append(Fault("model.path", found, "", cure))
    if faults:
        raise ConfigError(faults)
    base = _locate(adapter.base_model_name_or_path, "model")
    model = _load_whole(base, adapter.revision, head, seed, how)
    with retold(path, revision):
        return PeftModel.from_pretrained(model, path, is_trainable=True, revision=revision)


def _keep_layout(model: PreTrainedModel) -> None:
    """Stop bitsandbytes from repacking 4-bit weights at a first evaluation on CPUs with bfloat16.

    Its kernel for the packed form has no backward pass: later steps would fail, or have wrong
    gradients below that layer.
    """
    for part in model.modules():
        if hasattr(part, "support_avx512bf16_for_cpu"):
            part.support_avx512bf16_for_cpu = False


def _check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError where a text could become a token that the model has no embedding of.

    A special token that nothing here writes may lie beyond: that of Gemma's images does in its models of text alone.
    """
    rows = model.get_input_embeddings().num_embeddings
    beyond = [token for number, token in tokenizer.added_tokens_decoder.items() if number >= rows]
    used = {tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token}
    template = str(tokenizer.chat_template or "")
    met = [each for each in beyond if not each.special or each.content in used or each.content in template]
    if met or len(tokenizer) - len(beyond) > rows:
        raise ConfigError(
            Fault(
                "model.tokenizer.path",
                f"the tokenizer has {len(tokenizer)} tokens, the model {rows}",
                "the tokenizer that the model was trained with",
                "model.tokenizer.path=${model.path}",
            )
        )


def adopt_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make the model pad, begin and end as the tokenizer does; further end tokens stay."""
    config = model.config.get_text_config()
    generation = getattr(model, "generation_config", None)  # a score head generates nothing
    for holder in filter(None, (config, generation)):
        holder.pad_token_id = tokenizer.pad_token_id
        if tokenizer.bos_token_id is not None:
            holder.bos_token_id = tokenizer.bos_token_id
    end = tokenizer.eos_token_id
    several = isinstance(config.eos_token_id, list)
    config.eos_token_id = _join(end, config.eos_token_id) if several else end
    if generation is not None:
        generation.eos_token_id = _join(end, generation.eos_token_id)
        _warn_endless(tokenizer, set(_as_list(generation.eos_token_id)))


def _warn_endless(tokenizer: PreTrainedTokenizerBase, ends: set[int]) -> None:
    """Say so where answers end with a mark that stops no generation: the model would run on."""
    mark = turn_end(tokenizer)
    if mark and not ends & set(tokenizer.encode(mark, add_special_tokens=False)):
        log.warning(
            "the chat template ends an answer with %r, the tokenizer with %r: generation would not "
            "stop there; type model.tokenizer.eos_token=<the template's mark>",
            mark,
            tokenizer.eos_token,
        )


def _join(end: int, held: int | list[int] | None) -> int | list[int]:
    """The end token in front of the others that are held, or alone where there are none."""
    others = [token for token in _as_list(held) if token != end]
    return [end, *others] if others else end


def _as_list(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


# --- From scratch -------------------------------------------------------------------------------


def new_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    model_type: str,
    head: str = "lm",
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32",
    seed: int = 0,
    **architecture: Any,
) -> PreTrainedModel:
    """A model with random weights: ``architecture`` holds keys of the config of its ``model_type``.

    The vocabulary's size and special tokens are the tokenizer's. Same seed, same weights.
    """
    _check_choices(head, dtype)
    if head == "score":
        architecture = {"num_labels": 1} | architecture
    _check_architecture(model_type, architecture)
    config = AutoConfig.for_model(
        model_type,
        **{"vocab_size": len(tokenizer)} | architecture,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = HEADS[head].from_config(config, dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype))
    _check_vocabulary(model, tokenizer)
    adopt_tokens(model, tokenizer)
    return model


def _check_architecture(model_type: str, architecture: dict[str, Any]) -> None:
    """Raise ConfigError with every key that this architecture does not have."""
    try:
        config = AutoConfig.for_model(model_type)
    except ValueError:
        expected = "an architecture of transformers"
        fault = Fault("model.model_type", model_type, expected, "model.model_type=qwen2")
        raise ConfigError(fault) from None
    known = {*vars(config), *config.attribute_map, "num_labels"}
    faults = []
    for key in sorted(set(architecture) - known):
        close = difflib.get_close_matches(key, known, n=1)
        cure = f"model.{close[0]}={architecture[key]}" if close else ""
        found = f"{model_type} has no {key}"
        faults.append(Fault(f"model.{key}", found, "a key of its config", cure))
    if faults:
        raise ConfigError(faults)
