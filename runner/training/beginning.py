"""The beginning of a training: the last checks, the record of the start, and the first scores."""

import logging
from collections.abc import Callable

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from transformers import Trainer, TrainerState, TrainingArguments

from runner.errors import ConfigError, DataError, Fault, FolderError, RunnerError
from runner.io.files import write_json
from runner.model.encoding import stop_ids
from runner.run import Run, add_notes, write_manifest
from runner.run.disk import check_space
from runner.run.inputs import check_fingerprints, find_other_facts, read_fingerprints
from runner.training.callback.at_start import AtStart
from runner.training.components.evaluation import sample_training
from runner.training.components.model import policy_of
from runner.training.components.types import Components
from runner.training.held_out_scores import check_objective, held_out_scores
from runner.training.inspection import inspect_training
from runner.training.inspection_faults import find_faults, find_notes
from runner.training.recovery import record_adjustments
from runner.training.run_facts import collect_facts, find_process_dependence

log = logging.getLogger(__name__)


def prepare_start(run: Run, components: Components, source: Run | None) -> None:
    """Check the rows and the disk space, record the start, and have the start model measured.

    ``source`` is the run whose checkpoint this one begins with: itself where it continues. Its
    rows, tokenizer and other facts must be the same.
    """
    args = components.args
    trainer = components.trainer
    rows = components.train_rows
    if hasattr(rows, "__len__") and len(rows) < _rows_per_step(args):
        raise DataError(_too_few_rows(run, args, len(rows)))
    if trainer.is_world_process_zero():
        _record_start(run, components, source)
    trainer.add_callback(AtStart(_measure_start(run, components)))


def _record_start(run: Run, components: Components, source: Run | None) -> None:
    """Write the facts of this start into the manifest; FolderError where the source's differ."""
    facts = collect_facts(components, run.experiment)
    manifest = run.manifest()
    packages = facts["data"].get("environment")
    if packages:
        facts["versions"] = packages | (manifest.get("versions") or {})
    if source:
        FolderError.refuse(find_other_facts(source.manifest(), facts))
    if source and source != run:
        changes = check_fingerprints(source)
        add_notes(run, [f"begun with a checkpoint of {source}: {line}" for line in changes])
    write_manifest(
        run,
        **facts,
        inputs=read_fingerprints(run.cfg, manifest.get("inputs")),
        starts=manifest.get("starts", 0) + 1,
        of_processes=find_process_dependence(components.trainer, run.experiment),
    )
    record_adjustments(run)
    check_space(run)


def _measure_start(run: Run, components: Components) -> Callable[[], None]:
    """The measurement of the start model, for when the trainer has prepared it."""
    trainer = components.trainer

    def measure() -> None:
        """Write the scores; again where a run begins again, or its log would lack them."""
        _check_sharded(trainer)
        if trainer.state.global_step:
            forget_other_best(trainer.state, trainer.args)
            return
        sample_training(trainer, components.train_rows)
        scores = held_out_scores(trainer)
        check_objective(run.experiment.objective, scores)
        if trainer.is_world_process_zero():
            write_json(run.folder / "scores.json", {"before": scores})

    return measure


def _check_sharded(trainer: Trainer) -> None:
    """Raise RunnerError where a library has ignored without a word that the model is sharded."""
    model = trainer.model_wrapped
    kind = type(model).__name__
    is_sharded = {
        "fsdp": isinstance(model, FSDPModule | FullyShardedDataParallel),
        "deepspeed": kind == "DeepSpeedEngine",
    }
    for name, is_done in is_sharded.items():
        if getattr(trainer.args, name) and not is_done:
            raise RunnerError(
                Fault(
                    where=f"trainer.args.{name}",
                    found=f"set, but the prepared model is a {kind}",
                    expected="a model that is sharded",
                    fix="=null",
                )
            )


def forget_other_best(state: TrainerState, args: TrainingArguments) -> None:
    """Drop the best checkpoint so far where another figure chose it.

    So it is in runs that an earlier version began.
    """
    key = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
    if state.best_metric is None or any(key in row for row in state.log_history):
        return
    log.warning(
        "the best checkpoint so far was chosen by a figure other than %s, and is forgotten: the "
        "best is that of the steps from here on",
        key,
    )
    state.best_metric = None
    state.best_model_checkpoint = None
    state.best_global_step = None


def _rows_per_step(args: TrainingArguments) -> int:
    """The rows that one step needs at least: for trainers that sample, its different prompts."""
    completions: int | None = getattr(args, "generation_batch_size", None)
    if not completions:
        return 1
    prompts: int = completions // args.num_generations
    return prompts


def check_steps_taken(run: Run, components: Components) -> None:
    """Raise DataError where a training has ended without a step."""
    if components.trainer.state.global_step == 0:
        raise DataError(_too_few_rows(run, components.args, len(components.train_rows)))


def _too_few_rows(run: Run, args: TrainingArguments, rows: int) -> Fault:
    fix = "a smaller trainer.args.per_device_train_batch_size"
    if run.experiment.dataset.limits.get("train"):
        fix = f"dataset.limit.train=null, or {fix}"
    return Fault(
        where="dataset",
        found=f"{rows} training rows",
        expected=f"at least the {_rows_per_step(args)} that one step needs",
        fix=fix,
    )


def check_first_rows(run: Run, components: Components) -> None:
    """Raise ConfigError where rows are trained wrongly, and note what is only worth a look.

    All processes call it, and the first one tells.
    """
    trainer = components.trainer
    is_first = trainer.is_world_process_zero()
    part = run.experiment.trainer
    inspection = inspect_training(
        trainer,
        components.train_rows,
        form=part.form,
        head=part.head,
        ends=stop_ids(policy_of(trainer)),
    )
    faults = find_faults(inspection, run.experiment.tolerate)
    if faults:
        if not is_first:
            # The first process tells, and ends the others.
            trainer.accelerator.wait_for_everyone()
        raise ConfigError(faults)
    if is_first:
        add_notes(run, find_notes(inspection))
