"""The policy, what of it is trained, and its reference; and the model that a training has left."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import patch_environment
from peft import PeftConfig, PeftModel
from safetensors.torch import load_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

from runner.config.build import asked_for, build, serve
from runner.config.experiment import AdapterPart, Experiment
from runner.errors import ConfigError, Fault, FolderError
from runner.generate.run_weights import Weights
from runner.generate.sampler import Model
from runner.io.files import JsonObject, display_path
from runner.model.adapter import check_adapter, leave_out_routers, train_beside, train_tokens
from runner.model.check import LOADER, NEW
from runner.model.check_config import overrides_answers
from runner.model.load import check_quantization, hold_places
from runner.model.reference_model import copy_reference, needs_reference
from runner.model.saved import is_partitioned, load_adapter_weights
from runner.reward.outcome import best_device
from runner.schema import upstream
from runner.schema.source import has_method
from runner.schema.text import Node
from runner.training.components.args import check_devices


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
        quantization_config=_build_quantization(experiment),
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


def _build_quantization(experiment: Experiment) -> object:
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
        return build(peft.node)
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
    if getattr(args, "critic", None) in ("auto", "adapter"):
        faults.append(
            Fault(
                where="trainer.args.critic",
                found=f"{args.critic}: a second adapter on {base}, which is not on disk",
                expected="a model of its own",
                fix="=model",
            )
        )
    ConfigError.refuse(faults)


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


def load_trained(
    experiment: Experiment, weights: Weights, head: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model with these weights, on the accelerator if there is one, and its tokenizer.

    It is not to be trained.
    """
    check_devices(experiment)
    tuner = own_tuner(experiment.peft)
    folder = weights.folder
    if folder is not None:
        if (folder / "policy").is_dir():  # where PPO keeps it, beside its critic
            folder = folder / "policy"
        elif tuner is None:
            _check_loadable(folder)
    tokenizer = _load_tokenizer(experiment.model.tokenizer, folder)
    served = {
        "tokenizer": tokenizer,
        "head": head,
        "quantization_config": _build_quantization(experiment),
    }
    if folder is None or tuner is not None or (folder / "adapter_config.json").is_file():
        # The model that the training began with, then what was trained of it.
        node = experiment.model.arguments | path_of(experiment)
        model = serve(node, **served, seed=experiment.seed)
        if folder is not None:
            model = _load_tuned(model, tuner, folder)
    else:
        model = serve(_node_of_whole_model(experiment.model.arguments, folder), **served)
    model = model.eval().requires_grad_(False)
    if not experiment.model.is_spread and not getattr(model, "is_quantized", False):
        model = model.to(best_device())
    return model, tokenizer


def _check_loadable(folder: Path) -> None:
    """Raise FolderError where a folder holds no model or adapter that we can load."""
    has_config = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    has_weights = any(folder.glob("*.safetensors"))
    if not has_config or not has_weights or (folder / "ppo_state.json").is_file():
        raise FolderError(
            Fault(
                where=display_path(folder),
                found="weights that only the trainer itself can read, such as those of PPO with "
                "its critic, or shards",
                expected="a model or an adapter as safetensors",
                fix="checkpoint=model",
            )
        )


def _load_tokenizer(node: Node, folder: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer that a run has saved, with its template, or the configured one."""
    settings = dict(node)
    if folder is not None and (folder / "tokenizer_config.json").is_file():
        if "path" in asked_for(settings["_target_"]):
            settings |= _at_folder(settings, folder)
    tokenizer: PreTrainedTokenizerBase = build(settings)
    return tokenizer


def _at_folder(node: Node, folder: Path) -> JsonObject:
    """The values that have a node load from a folder, which has no revisions."""
    values: JsonObject = {"path": str(folder)}
    if "revision" in node:
        values["revision"] = None
    return values


def _load_tuned(model: Model, tuner: Any, folder: Path) -> Model:
    """A start model with the adapter, or the weights of a user's own tuner, in a folder."""
    tuned: Model
    if tuner is None:
        tuned = load_adapter_weights(model, folder)
    elif (folder / "trainer_state.json").is_file():  # a checkpoint, as the trainer writes it
        tuned = tuner.prepare_model(model)
        load_model(tuned, str(folder / "model.safetensors"), strict=False)
    else:
        tuned = tuner.from_pretrained(model, folder)
    return tuned


def _node_of_whole_model(node: Node, folder: Path) -> JsonObject:
    """The node that loads a whole model from a folder, by the user's own loader where that can."""
    target = node["_target_"]
    if target not in (LOADER, NEW) and "path" in asked_for(target):
        return {**node, **_at_folder(node, folder)}
    taken = asked_for(LOADER) - {"path", "revision", "merge", "seed"}
    settings = {key: value for key, value in node.items() if key in taken}
    return {**settings, "_target_": LOADER, "path": str(folder)}
