"""Adapters and quantised weights: what goes with them, and with what they are trained."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.errors import Fault
from runner.model import faults
from runner.model.node import overrides_answers
from runner.schema import upstream
from runner.schema.ranges import POSITIVE, RANK
from runner.schema.source import has_method
from runner.schema.text import short_text
from runner.validate.context import ValidationContext, is_given
from runner.validate.values import is_plain_number


def find_quantised_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for weights of 4 or 8 bits without what is trained beside them."""
    quant = context.mapping("quant")
    if not quant:
        return
    peft = context.mapping("peft")
    has_adapter = is_given(context.cfg.get("peft")) and not context.changes_model(peft)
    # The model may be an adapter itself, which is trained on.
    path = str(context.mapping("model").get("path"))
    trained = Path(path, "adapter_config.json")
    if not has_adapter and not trained.is_file():
        option = "lora" if "lora" in context.options("peft") else "<an adapter>"
        yield Fault(
            where="quant",
            found="set, but quantised weights cannot be trained",
            expected="an adapter",
            fix=f"peft={option}",
        )
    if str(quant.get("_target_")).endswith("BitsAndBytesConfig"):
        bits = [name for name in ("load_in_4bit", "load_in_8bit") if quant.get(name)]
        if not bits:
            yield Fault(
                where="quant",
                found="neither load_in_4bit nor load_in_8bit",
                expected="one of the two",
                fix="quant.load_in_4bit=true",
            )
        elif len(bits) == 2:
            yield Fault(
                where="quant",
                found="load_in_4bit and load_in_8bit",
                expected="one of the two",
                fix="quant.load_in_8bit=false",
            )
    if overrides_answers(context.mapping("model")):
        yield Fault(
            where="model.config",
            found="set, but an adapter on a base of 4 or 8 bits cannot be merged into it",
            expected="a folder of the model whose config.json has these keys",
            fix="quant=none",
        )


def find_pattern_value_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each rank, or scale, of some modules that an adapter cannot have."""
    peft = context.mapping("peft")
    ranks = peft.get("rank_pattern")
    if isinstance(ranks, Mapping):
        for module, rank in ranks.items():
            is_whole = isinstance(rank, int) and not isinstance(rank, bool)
            if not is_whole or rank not in RANK:
                where = f"peft.rank_pattern.{module}"
                yield Fault(
                    where=where,
                    found=short_text(rank),
                    expected=f"a whole number, {RANK}",
                    fix="=8",
                )
    scales = peft.get("alpha_pattern")
    if isinstance(scales, Mapping):
        for module, alpha in scales.items():
            if not is_plain_number(alpha) or alpha not in POSITIVE:
                where = f"peft.alpha_pattern.{module}"
                yield Fault(
                    where=where,
                    found=short_text(alpha),
                    expected=f"a number {POSITIVE}",
                    fix="=16",
                )


def find_useless_adapter_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each setting with which nothing would train, or from another start."""
    peft = context.mapping("peft")
    if peft.get("inference_mode") is True:
        yield Fault(
            where="peft.inference_mode",
            found="true: nothing of the adapter would train",
            expected="false",
            fix="=false",
        )
    start = peft.get("init_lora_weights")
    if start is False:
        yield Fault(
            where="peft.init_lora_weights",
            found="false: its random weights would change the model before the first step",
            expected="a start that changes nothing",
            fix="=true",
        )
    if start == "eva":
        yield Fault(
            where="peft.init_lora_weights",
            found="eva, a start that is computed from rows, which is not done here",
            expected="another start",
            fix="=pissa",
        )
    if peft.get("target_modules") == []:
        yield Fault(
            where="peft.target_modules",
            found="[]: no layer would get an adapter",
            expected="layers",
            fix="=all-linear",
        )


def find_adapter_kind_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each kind of adapter, or tuner, that the trainer or another setting excludes."""
    peft = context.mapping("peft")
    signature = context.signature(peft)
    has_critic = context.has_field("critic")
    if has_critic and has_method(peft.get("_target_"), "prepare_model"):
        yield Fault(
            where="peft",
            found=f"a tuner that saves and loads itself, but {context.option} saves policy and "
            "critic together",
            expected="one that changes the model, or a PeftConfig",
            fix="peft=lora",
        )
    if signature is None:
        return
    if peft.get("full") and context.changes_model(peft):
        yield Fault(
            where="peft.full",
            found=f"set, but {signature.name} adds no adapter",
            expected="an adapter, in addition to which layers are trained in full",
            fix="peft=lora",
        )
    # Few runs have an adapter, and the others need not wait for the check of a tokenizer.
    from runner.model.check_tokenizer import new_tokens

    is_peft_config = "inference_mode" in signature.parameters
    trains_tokens = (
        peft.get("full")
        or peft.get("modules_to_save")
        or "trainable_token_indices" in signature.parameters
    )
    if is_peft_config and not trains_tokens and new_tokens(context.mapping("model.tokenizer")):
        yield faults.untrained_tokens(kind=signature.name)


def find_unseen_model_keys(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each key of the model that whoever trains or samples would not see."""
    model = context.mapping("model")
    if context.has_field("critic"):
        for key in context.mapping("model.config"):
            if "router" in str(key):
                yield Fault(
                    where=f"model.config.{key}",
                    found="set, but this trainer has no router loss",
                    expected="none, or a trainer that adds one",
                    fix="leave it out",
                )
    loader = ""
    is_merged = False
    if context.trainer and upstream.takes_path(context.trainer):
        loader = context.trainer.name
        is_merged = bool(model.get("merge"))
    elif context.args.get("use_vllm") or context.args.get("rollout_engine") == "vllm":
        loader = "vLLM"
    if not loader:
        return
    from runner.model.check_tokenizer import new_tokens

    settings = {
        "merge": is_merged,
        "config": overrides_answers(model),
        "tokenizer.add_tokens": new_tokens(context.mapping("model.tokenizer")),
    }
    for key in [key for key, setting in settings.items() if setting]:
        yield Fault(
            where=f"model.{key}",
            found=f"set, but {loader} loads the model at model.path without it",
            expected="a folder of the model that has it, such as the model/ of a run",
            fix="model.path=<that folder>",
        )
