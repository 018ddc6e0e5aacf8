"""The folder ``model/`` of a run, in which a trained model is saved for others."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    Trainer,
    TrainingArguments,
)
from transformers.integrations import unset_hf_deepspeed_config

from runner.config.build import serve
from runner.errors import Fault, RunnerError
from runner.io.files import shipped, write_json
from runner.model.adapter import merge_adapter, write_adapter
from runner.model.encoding import tokenizer_of
from runner.model.joined_adapter import join_adapters
from runner.model.load import read_adapter
from runner.model.model_files import OWN_ADAPTER
from runner.model.saved import (
    find_missing,
    gather_weights,
    is_partitioned,
    load_adapter_weights,
)
from runner.run import Run
from runner.run.seal import seal
from runner.training.components.model import policy_of
from runner.training.components.start_model import has_base, path_of

Weights = Mapping[str, Any]
# Arguments of this run alone; transformers masks tokens.
OWN_ARGUMENTS = ("output_dir", "logging_dir", "run_name")


def save_model(run: Run, trainer: Trainer) -> None:
    """Put into ``model/`` what ``from_pretrained`` or PeftModel loads, without any pickle.

    The folder is whole or not there. All processes call it.
    """
    new = run.folder / ".model.new"
    is_first = trainer.is_world_process_zero()
    model = trainer.accelerator.unwrap_model(trainer.model)
    policy = policy_of(trainer)
    if is_first:
        shutil.rmtree(new, ignore_errors=True)
        # Nobody else has made it: a link in its place would be followed.
        new.mkdir()
    # Otherwise what another process writes would be removed.
    trainer.accelerator.wait_for_everyone()
    # PPO knows the parts of its model, and saves them itself.
    saves_itself = policy is not model
    tuner = getattr(policy, "own_tuner", None)
    weights = _gather(trainer, policy, saves_itself=saves_itself)
    is_plain = weights is None and not tuner and not isinstance(model, PeftModel)
    if saves_itself or is_plain:
        trainer.save_model(str(new))
    # Otherwise what another process still writes would not be there.
    trainer.accelerator.wait_for_everyone()
    if not is_first:
        return
    if tuner:
        tuner.save_pretrained(policy, new)
    elif isinstance(policy, PeftModel):
        _save_adapter(run, policy, new, weights, trainer.processing_class)
    elif weights is not None and not saves_itself:
        # Of weights that share their numbers only the first is written.
        tied = policy.all_tied_weights_keys
        untied = {name: weight for name, weight in weights.items() if name not in tied}
        policy.save_pretrained(new, state_dict=untied)
    trainer.processing_class.save_pretrained(new)
    # ZeRO-3 would split what is loaded from here on over processes that have left.
    unset_hf_deepspeed_config()
    missing = [] if tuner else find_missing(policy, new, weights)
    critic = getattr(model, "value_model", None)
    if critic:
        missing += find_missing(critic, new / "value_model")
    if missing:
        raise RunnerError(
            Fault(
                where=str(run.model),
                found=f"{len(missing)} weights were not saved: {', '.join(missing[:3])}",
                expected="every weight of the model",
                fix=f"python -m runner.launch {run}  (which saves again what the newest checkpoint "
                "holds)",
            )
        )
    _write_arguments(new, trainer.args)
    seal(new)
    shutil.rmtree(run.model, ignore_errors=True)
    new.rename(run.model)


def _gather(
    trainer: Trainer, policy: PreTrainedModel | PeftModel, *, saves_itself: bool
) -> Weights | None:
    """The weights of a model that is split over processes, whatever form its checkpoints have.

    None where each process has all of them. All processes call it.
    """
    if trainer.is_fsdp_enabled and not saves_itself:
        weights: Weights = trainer.accelerator.get_state_dict(trainer.model)
        return weights
    if trainer.is_fsdp_enabled or (isinstance(policy, PeftModel) and is_partitioned(policy)):
        return gather_weights(policy, keep=trainer.is_world_process_zero())
    return None


def _write_arguments(folder: Path, training_args: TrainingArguments) -> None:
    """Write the arguments of the training as JSON in the place of the library's pickle."""
    args = training_args.to_dict()
    for name in OWN_ARGUMENTS:
        args.pop(name, None)
    (folder / "training_args.bin").unlink(missing_ok=True)
    write_json(folder / "training_args.json", args)


def _save_adapter(
    run: Run,
    model: PeftModel,
    folder: Path,
    weights: Weights | None,
    processor: PreTrainedTokenizerBase | ProcessorMixin,
) -> None:
    """Write the adapter with the base that the config names, so that it loads elsewhere, too."""
    experiment = run.experiment
    start = path_of(experiment).get("path", "")
    revision = experiment.model.revision
    loaded = read_adapter(start, revision) if has_base(experiment) else None
    if has_base(experiment):
        if loaded:
            start = loaded.base_model_name_or_path
            revision = loaded.revision
        write_adapter(model, folder, base=shipped(start), revision=revision, state_dict=weights)
        return
    for file in folder.glob("adapter_*"):
        file.unlink()
    first = Path(shipped(start))
    if (first / "adapter_config.json").is_file():
        own = folder / OWN_ADAPTER
        write_adapter(model, own, base=str(first), state_dict=weights)
        critic = folder / "value_model" / "critic"
        if critic.is_dir():
            join_adapters(first, critic, critic)
        if join_adapters(first, own, folder):
            return
        if experiment.quant:
            # Into weights that were never quantised.
            start = serve(
                experiment.model.arguments | path_of(experiment),
                tokenizer=tokenizer_of(processor),
                head=experiment.trainer.head,
                seed=experiment.seed,
            )
            merge_adapter(load_adapter_weights(start, own)).save_pretrained(folder)
            return
        shutil.rmtree(own)
    model.merge_and_unload(adapter_names=["default"]).save_pretrained(folder)
