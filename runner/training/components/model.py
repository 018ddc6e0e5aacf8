"""The policy, what of it is trained, and its reference; and the model that a training has left."""

from collections.abc import Callable
from functools import partial
from typing import Any

from accelerate.utils import patch_environment
from peft import PeftConfig, PeftModel
from safetensors.torch import load_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

from runner.config.build import asked_for, build, serve
from runner.errors import ConfigError, FolderError, fault
from runner.generate.sampler import Model
from runner.generate.weights import Weights
from runner.io.files import display_path
from runner.model.adapter import OWN, check_adapter, leave_out_routers, train_beside, train_tokens
from runner.model.check import LOADER, NEW, overrides_answers
from runner.model.load import check_quantization, hold_places
from runner.model.reference import copy_reference, needs_reference
from runner.model.saved import is_partitioned, load_adapter_weights
from runner.reward.outcome import best_device
from runner.schema import upstream
from runner.schema.source import has_method
from runner.schema.text import Config, Node
from runner.training.components.args import check_devices


def build_model(
    cfg: Config, tokenizer: PreTrainedTokenizerBase, args: TrainingArguments
) -> tuple[Model, PeftConfig | None, Model | None]:
    """The policy, the adapter that the trainer puts on it once, and its reference where the trainer takes one."""
    check_quantization(cfg["quant"])
    head, quantization = cfg["trainer"]["head"], build(cfg["quant"])
    node = {key: value for key, value in cfg["model"].items() if key != "tokenizer"} | path_of(cfg)
    load = partial(serve, tokenizer=tokenizer, head=head, quantization_config=quantization, seed=cfg["seed"])
    model, is_handed_out = _load_policy(cfg, args, node, load)
    model, peft_config = build_tuner(cfg["peft"], model, head)
    train_tokens(model, peft_config, tokenizer)
    check_adapter(model, peft_config)
    check_merged(cfg, peft_config, args)
    precomputed = getattr(args, upstream.PRECOMPUTE_REF_LOG_PROBS, False) and not args.fsdp  # then TRL loads one
    takes_one = upstream.REF_MODEL in asked_for(cfg["trainer"]["_target_"]) and getattr(args, "penalises_kl", True)
    if not (takes_one and needs_reference(model, peft_config, precomputed=precomputed)):
        return model, peft_config, None
    if is_partitioned(model):  # a share is nothing to copy
        return model, peft_config, load(node).requires_grad_(False).eval()
    # ``match_reference`` fills one that is empty, but for that of an adapter.
    is_whole = not is_handed_out or not (peft_config or isinstance(model, PeftModel))
    return model, peft_config, copy_reference(model if is_whole else load(node))


def _load_policy(cfg: Config, args: TrainingArguments, node: Node, load: Callable[[Node], Model]) -> tuple[Model, bool]:
    """The policy, and True where its weights are only places that the first process of this machine will fill."""
    plugin = getattr(args, "fsdp_plugin_args", None) or {}
    if not plugin.get("cpu_ram_efficient_loading"):
        return load(node), False
    # Accelerate hands out no buffers that are saved (the balance of experts, matrices that some adapters share), and no
    # tied weights that an adapter may have put something around.
    has_buffers = bool(cfg["peft"]) and upstream.setting(cfg["peft"], "save_projection", False)
    is_handed_out = (
        bool(args.local_process_index)
        and "device_map" in asked_for(node["_target_"])
        and not (has_buffers or cfg["quant"] or node.get("merge"))
    )
    # transformers fills the other buffers of a model without weights by the variables of accelerate launch alone.
    variables = dict.fromkeys(("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING"), str(is_handed_out))
    with patch_environment(**variables):
        model = load({**node, "device_map": "meta"} if is_handed_out else node)
    has_buffers |= bool(model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys())
    if has_buffers or (model.all_tied_weights_keys and (cfg["peft"] or isinstance(model, PeftModel))):
        plugin["cpu_ram_efficient_loading"] = False
        return (load(node) if is_handed_out else model), False
    if is_handed_out:
        hold_places(model)
    return model, is_handed_out


def own_tuner(node: Node | None) -> Any:
    """A tuner with methods of its own, ``prepare_model(model)``, ``save_pretrained(model, folder)`` and
    ``from_pretrained(model, folder)``, of which the first and the last give the model; None of any other.
    """
    return build(node) if node and has_method(node["_target_"], "prepare_model") else None


def build_tuner(node: Node | None, model: Model, head: str) -> tuple[Model, PeftConfig | None]:
    """The model, perhaps changed by a function that asks for it, and the adapter for the trainer to put on, if any."""
    if not node:
        return model, None
    arguments = {key: value for key, value in node.items() if key not in OWN}
    if tuner := own_tuner(node):
        made = tuner.prepare_model(model)
        made.own_tuner = tuner  # for whoever saves the model
    else:
        made = serve(arguments, model=model, task_type="SEQ_CLS" if head == "score" else "CAUSAL_LM")
    if isinstance(made, PeftConfig):
        leave_out_routers(model, made)
        if node.get("full"):
            train_beside(model, made, node["full"])
        return model, made
    if not isinstance(made, PreTrainedModel | PeftModel):
        raise ConfigError(fault("training.no_tuner", target=node["_target_"], kind=type(made).__name__))
    return made, None


def check_merged(cfg: Config, peft_config: PeftConfig | None, args: TrainingArguments) -> None:
    """Raise ConfigError where an adapter on a merged or new model could not be saved: that model is nowhere on disk."""
    if has_base(cfg) or peft_config is None:
        return
    base = "a merged model" if cfg["model"].get("merge") else "a model that is new, or has another config"
    faults = []
    if peft_config.is_prompt_learning:
        faults.append(fault("training.prompt_on_no_base", kind=type(peft_config).__name__, base=base))
    if getattr(args, "critic", None) in ("auto", "adapter"):
        faults.append(fault("training.critic_on_no_base", critic=args.critic, base=base))
    ConfigError.refuse(faults)


def path_of(cfg: Config) -> dict[str, str]:
    """The place of the policy's weights, if any: PPO's own argument for it comes before ``model.path``."""
    path = cfg["trainer"]["args"].get("sft_model_path") or cfg["model"].get("path")
    return {"path": path} if path else {}


def has_base(cfg: Config) -> bool:
    """True where what is below an adapter lies somewhere, so that it can be saved alone and loaded again."""
    return bool(path_of(cfg)) and not cfg["model"].get("merge") and not overrides_answers(cfg["model"])


def policy_of(trainer: Trainer) -> Model:
    """The language model that a trainer trains, without what distributes it or stands beside it, such as a critic."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return getattr(model, "policy", model)


def load_trained(cfg: Config, weights: Weights, head: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model with these weights and its tokenizer, on the accelerator if there is one, not to be trained."""
    check_devices(cfg)
    folder, tuner = weights.folder, own_tuner(cfg.get("peft"))
    if folder and (folder / "policy").is_dir():  # where PPO keeps them, beside its critic
        folder /= "policy"
    elif folder and not tuner:
        plain = [name for name in ("config.json", "adapter_config.json") if (folder / name).is_file()]
        if not plain or not list(folder.glob("*.safetensors")) or (folder / "ppo_state.json").is_file():
            raise FolderError(fault("training.weights_of_a_trainer", folder=display_path(folder)))
    own = dict(cfg["model"]["tokenizer"])
    saved = folder and (folder / "tokenizer_config.json").is_file()  # the run's own, with its template
    if saved and "path" in asked_for(own["_target_"]):
        own |= {"path": str(folder)} | ({"revision": None} if "revision" in own else {})
    tokenizer = build(own)
    node = {key: value for key, value in cfg["model"].items() if key != "tokenizer"}
    served = {"tokenizer": tokenizer, "head": head, "quantization_config": build(cfg.get("quant"))}
    if folder is None or tuner or (folder / "adapter_config.json").is_file():
        model = serve(node | path_of(cfg), **served, seed=cfg.get("seed", 0))  # which the training began with
        if folder and tuner and (folder / "trainer_state.json").is_file():  # a checkpoint, as the trainer writes it
            model = tuner.prepare_model(model)
            load_model(model, str(folder / "model.safetensors"), strict=False)
        elif folder:
            model = tuner.from_pretrained(model, folder) if tuner else load_adapter_weights(model, folder)
    else:
        target = node["_target_"]
        if target not in (LOADER, NEW) and "path" in asked_for(target):  # a user's own that can
            node |= {"path": str(folder)} | ({"revision": None} if "revision" in node else {})
        else:
            known = asked_for(LOADER) - {"path", "revision", "merge", "seed"}
            node = {key: value for key, value in node.items() if key in known}
            node |= {"_target_": LOADER, "path": str(folder)}
        model = serve(node, **served)
    model = model.eval().requires_grad_(False)
    is_placed = cfg["model"].get("device_map") or getattr(model, "is_quantized", False)
    return model if is_placed else model.to(best_device()), tokenizer
