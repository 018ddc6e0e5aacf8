"""The policy, what of it is trained, and its reference."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import patch_environment
from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

from runner.config.adapter_rate import FACTOR
from runner.config.build import asked_for, build, serve
from runner.config.experiment import AdapterPart, Experiment
from runner.errors import ConfigError, Fault
from runner.generate.sampler import Model
from runner.io.files import read_json, shipped
from runner.model.adapter import check_adapter, leave_out_routers, train_beside, train_tokens
from runner.model.joined_adapter import can_join
from runner.model.load import check_quantization
from runner.model.node import overrides_answers
from runner.model.reference_model import copy_reference, needs_reference
from runner.model.saved import hold_places, is_partitioned
from runner.schema import upstream
from runner.schema.source import has_method
from runner.schema.text import Node


@dataclass(frozen=True)
class TrainedModels:
    """The models of a training."""

    policy: Model
    peft_config: PeftConfig | None  # of the adapter that the trainer puts on the policy
    reference: Model | None  # where the trainer takes one


def build_model(
    experiment: Experiment, tokenizer: PreTrainedTokenizerBase, args: TrainingArguments
) -> TrainedModels:
    """The policy with what of it is trained, and its reference."""
    check_quantization(experiment.quant)
    head = experiment.trainer.head
    node = experiment.model.arguments | path_of(experiment)
    load = partial(
        serve,
        tokenizer=tokenizer,
        head=head,
        quantization_config=build_quantization(experiment),
        seed=experiment.seed,
    )
    policy, is_handed_out = _load_policy(experiment, args, node, load)
    policy, peft_config = build_tuner(experiment.peft, policy, head)
    train_tokens(policy, peft_config, tokenizer)
    check_adapter(policy, peft_config)
    check_merged(experiment, peft_config, args)
    takes_reference = "ref_model" in asked_for(experiment.trainer.target)
    if not takes_reference or not getattr(args, "penalises_kl", True):
        return TrainedModels(policy, peft_config, None)
    # With FSDP, TRL loads a reference even where it precomputes log-probabilities.
    precomputed = getattr(args, "precompute_ref_log_probs", False) and not args.fsdp
    if not needs_reference(policy, peft_config, precomputed=precomputed):
        return TrainedModels(policy, peft_config, None)
    if is_partitioned(policy):  # a share of the weights is nothing to copy
        reference = load(node).requires_grad_(False).eval()
    elif is_handed_out and (peft_config or isinstance(policy, PeftModel)):
        # ``match_reference`` fills one that is empty, but not that of an adapter.
        reference = copy_reference(load(node))
    else:
        reference = copy_reference(policy)
    return TrainedModels(policy, peft_config, reference)


def build_quantization(experiment: Experiment) -> object:
    """The configured quantization; None without one."""
    return build(experiment.quant.node) if experiment.quant else None


def _load_policy(
    experiment: Experiment, args: TrainingArguments, node: Node, load: Callable[[Node], Model]
) -> tuple[Model, bool]:
    """The policy, and True where its weights are only places.

    The first process of this machine will fill these.
    """
    plugin = getattr(args, "fsdp_plugin_args", None) or {}
    if not plugin.get("cpu_ram_efficient_loading"):
        return load(node), False
    # Accelerate hands out no buffers that are saved (the balance of experts, matrices that some
    # adapters share), and no tied weights that an adapter may have put something around.
    peft = experiment.peft
    saves_buffers = peft is not None and upstream.setting(peft.node, "save_projection", False)
    needs_weights = saves_buffers or experiment.quant or node.get("merge")
    takes_device_map = "device_map" in asked_for(node["_target_"])
    is_first = not args.local_process_index
    is_handed_out = not is_first and takes_device_map and not needs_weights
    if is_handed_out:
        node_of_process = {**node, "device_map": "meta"}
    else:
        node_of_process = dict(node)
    # transformers fills the other buffers of a model without weights where it sees the variables of
    # accelerate launch.
    with patch_environment(
        ACCELERATE_USE_FSDP=str(is_handed_out),
        FSDP_CPU_RAM_EFFICIENT_LOADING=str(is_handed_out),
    ):
        model = load(node_of_process)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    has_buffers = saves_buffers or bool(model.state_dict().keys() - parameters.keys())
    has_adapter = peft is not None or isinstance(model, PeftModel)
    if has_buffers or (model.all_tied_weights_keys and has_adapter):
        plugin["cpu_ram_efficient_loading"] = False
        return (load(node) if is_handed_out else model), False
    if is_handed_out:
        hold_places(model)
    return model, is_handed_out


def own_tuner(peft: AdapterPart | None) -> Any:
    """A tuner with methods of its own; None for any other.

    They are ``prepare_model(model)``, ``save_pretrained(model, folder)`` and
    ``from_pretrained(model, folder)``; the first and the last give the model.
    """
    if peft and has_method(peft.target, "prepare_model"):
        node = dict(peft.node)
        node.pop(FACTOR, None)
        return build(node)
    return None


def build_tuner(
    peft: AdapterPart | None, model: Model, head: str
) -> tuple[Model, PeftConfig | None]:
    """The model and the adapter for the trainer to put on it, if any.

    A function that asks for the model may give it back changed; then there is no adapter.
    """
    if not peft:
        return model, None
    tuner = own_tuner(peft)
    if tuner is not None:
        made = tuner.prepare_model(model)
        made.own_tuner = tuner  # for whoever saves the model
    else:
        made = serve(peft.arguments, model=model, task_type=task_type_of(head))
    if isinstance(made, PeftConfig):
        leave_out_routers(model, made)
        if peft.full:
            train_beside(model, made, peft.full)
        return model, made
    if not isinstance(made, PreTrainedModel | PeftModel):
        raise ConfigError(
            Fault(
                where="peft",
                found=f"{peft.target} returned {type(made).__name__}",
                expected="the model, or a PeftConfig",
                fix="return model",
            )
        )
    return made, None


def task_type_of(head: str) -> str:
    """The name that peft has for models with this head."""
    return "SEQ_CLS" if head == "score" else "CAUSAL_LM"


def check_merged(
    experiment: Experiment, peft_config: PeftConfig | None, args: TrainingArguments
) -> None:
    """Raise ConfigError where an adapter on a merged or new model could not be saved.

    Such a model is nowhere on disk.
    """
    if peft_config is None or has_base(experiment):
        return
    base = "a model that is new, or has another config"
    if experiment.model.node.get("merge"):
        base = "a merged model"
    faults = []
    if peft_config.is_prompt_learning:
        faults.append(
            Fault(
                where="peft",
                found=f"{type(peft_config).__name__} on {base}, which is not on disk, and it "
                "cannot be merged",
                expected="an adapter inside the layers",
                fix="=lora",
            )
        )
    is_beside = getattr(args, "critic", None) in ("auto", "adapter")
    if is_beside and not find_adapter_below(experiment, peft_config):
        faults.append(
            Fault(
                where="trainer.args.critic",
                found=f"{args.critic}: a second adapter on {base}, which is not on disk",
                expected="a model of its own",
                fix="=model",
            )
        )
    ConfigError.refuse(faults)


def find_adapter_below(experiment: Experiment, peft_config: PeftConfig) -> Path | None:
    """The folder of the adapter that is merged below this one, if both can be saved as one."""
    folder = Path(shipped(path_of(experiment).get("path", "")))
    config = read_json(folder / "adapter_config.json")
    return folder if config and can_join(config, peft_config.to_dict()) else None


def path_of(experiment: Experiment) -> dict[str, str]:
    """The ``path`` of the policy's weights, if any; PPO's own argument for it comes first."""
    path = experiment.trainer.args.get("sft_model_path") or experiment.model.path
    return {"path": path} if path else {}


def has_base(experiment: Experiment) -> bool:
    """True where the model below an adapter is on disk, so that the adapter can be saved alone."""
    model = experiment.model.node
    return bool(path_of(experiment)) and not model.get("merge") and not overrides_answers(model)


def policy_of(trainer: Trainer) -> Model:
    """The language model that a trainer trains, without wrappers, or the critic beside it."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return getattr(model, "policy", model)
