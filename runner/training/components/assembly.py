"""Run folder -> the components of a training, built by calls in order, each given what it needs."""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import pyarrow as pa
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments, set_seed

from runner.config.build import build
from runner.config.experiment import Experiment, LossPart
from runner.dataset.weigh import carries_weights
from runner.errors import ConfigError, Fault, own_place, reason_of
from runner.generate.call_log import CallLog
from runner.generate.earned import Rewards
from runner.generate.reward_model import ModelReward
from runner.generate.sampler import Model
from runner.io.terminal import mute_libraries
from runner.model.check import no_stop_strings
from runner.model.encoding import processor_of
from runner.reward.panel import ScoredCompletions
from runner.run import Run
from runner.run.adjustments import adjust_logs, count_halvings, read_adjustments
from runner.run.alarms import steps_to_notice
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.tracker.callback import PostponedEnd, Tracker
from runner.tracker.replacement import check_trackers, replace_trackers
from runner.training.callback.call_steps import CallSteps
from runner.training.callback.order import add_callbacks, add_own_trackers
from runner.training.callback.stop import StopRequest
from runner.training.callback.user import build_callbacks, parts_for_callbacks
from runner.training.checkpoint import Seal
from runner.training.components.args import build_args
from runner.training.components.chat_rows import are_chats, check_chats
from runner.training.components.environment import fit_environment
from runner.training.components.evaluation import build_measure
from runner.training.components.held_out_engine import HeldOutEngine
from runner.training.components.model import build_model
from runner.training.components.rehearsal import blaming, rehearse_components
from runner.training.components.rewards import (
    BuiltRewards,
    build_rewards,
    build_samples,
    to_model_rewards,
)
from runner.training.components.row_order import group_lengths
from runner.training.components.scorers import build_metrics
from runner.training.components.token_weights import (
    BoundRule,
    build_rules,
    columns_asked_for,
    set_weights,
)
from runner.training.components.tools import (
    agent_of,
    build_call_log,
    build_functions,
)
from runner.training.components.trainer import build_trainer
from runner.training.components.trainer_parts import (
    build_collator,
    build_curricula,
    build_loss,
    optimizer_maker,
    schedule_maker,
    trainer_sampling,
)
from runner.training.components.training_rows import (
    TrainingRows,
    load_training_rows,
    write_prompts,
)
from runner.training.components.turn_weights import with_turn_weights
from runner.training.components.types import Components, OfferedParts
from runner.training.curriculum import RowCurriculum
from runner.training.dynamic_sampling import DynamicSampling
from runner.training.first_rollouts import FirstRollouts
from runner.training.health import build_health
from runner.training.hooks import ExchangingContext, Hooks
from runner.training.padding import wants_no_padding
from runner.training.precompute import precompute_by_default

CHECKPOINTS_KEPT = 2  # unless ``save_total_limit`` says otherwise


def build_components(run: Run, stop: StopRequest | None = None) -> Components:
    """Build every component of a run, in the order in which they need each other.

    The order also decides which random numbers each of them draws.
    """
    experiment = run.experiment
    part = experiment.trainer
    adjustments = read_adjustments(run.folder)
    mute_libraries()
    set_seed(experiment.seed)
    with _refusals_of("trainer.args"), blaming(run, "trainer.args"):
        args = build_args(run, adjustments)
    check_trackers(experiment.tracker)
    rehearse_components(run, args)

    tokenizer = build(experiment.model.tokenizer)
    rules = build_rules(experiment.weights)
    rows = load_training_rows(experiment, columns_asked_for(rules))
    calls = build_call_log(run, args)
    functions = build_functions(part, experiment.environment, calls)
    agent = agent_of(part, functions)
    rewards = build_rewards(experiment, args, agent, calls)
    reward_models = to_model_rewards(rewards, tokenizer, args)
    if are_chats(experiment, args, tokenizer, rows.train, agent):
        experiment, rows = _fit_chats(experiment, args, tokenizer, rows)
        rules = build_rules(experiment.weights)
    if not rules:
        precompute_by_default(run, args, rows.train, rows.held_out)

    # Models, and what asks them.
    models = build_model(experiment, tokenizer, args)
    _check_stop_strings(experiment, args, models.policy)
    parts = parts_for_callbacks(run, tokenizer, rows.train, rows.held_out, agent)
    loads_by_path = upstream.takes_path(read_signature(part.target))
    curricula = build_curricula(experiment)
    offered: OfferedParts = {
        "model": models.policy.name_or_path if loads_by_path else models.policy,
        "ref_model": models.reference,
        "args": args,
        "processing_class": processor_of(tokenizer),
        "reward_funcs": rewards.functions,
        "train_dataset": rows.train,
        "eval_dataset": rows.held_out,
        "peft_config": models.peft_config,
        "data_collator": build_collator(experiment.collator, tokenizer),
        "callbacks": build_callbacks(experiment.callbacks, parts) + curricula,
    }
    health = build_health(run, args, models.peft_config, rewards.panel)
    metrics = build_metrics(experiment.metrics, tokenizer)
    halvings = count_halvings(adjustments, "per_device_eval_batch_size")
    engine = HeldOutEngine(is_wanted=experiment.engine == "vllm")
    hooks = Hooks(
        evaluates=part.evaluates,
        sampling=trainer_sampling(experiment),
        exchanging=_exchanging_context(experiment, args, rewards, tokenizer, *curricula),
        measure=build_measure(run, tokenizer, metrics, agent, halvings, engine.sampler_of),
        on_loss=health.observe_loss,
        on_log=functools.partial(adjust_logs, adjustments) if adjustments else None,
        samples=build_samples(run, tokenizer, rewards),
        on_rollout=FirstRollouts(run).observe,
        reward_means=rewards.panel.pop_means if rewards.panel else None,
        skips_padding=wants_no_padding(run),
        make_optimizer=optimizer_maker(experiment.optimizer),
        make_schedule=schedule_maker(experiment.optimizer),
        loss=build_loss(experiment.loss),
        loss_part=experiment.loss or LossPart(),
        reads_cross_entropy=upstream.ranking_figure(experiment.node) == upstream.CROSS_ENTROPY,
        use_cache=getattr(models.policy.config, "use_cache", None),
    )
    with _refusals_of("trainer"), blaming(run):
        functions = fit_environment(part, functions, agent, args, hooks)
        trainer = build_trainer(experiment, {**offered, **functions}, hooks, rules)
    _complete(experiment, trainer, tokenizer, rules, reward_models, calls)
    trackers: list[Tracker | PostponedEnd] = [*replace_trackers(trainer, experiment, run.folder)]
    trackers += add_own_trackers(trainer, experiment.tracker, parts)
    seal = _build_seal(run, args)
    add_callbacks(trainer, run, parts, stop, health, seal, adjustments)
    return Components(
        args, tokenizer, rows.train, rows.held_out, trainer, health, seal, trackers, adjustments
    )


def _fit_chats(
    experiment: Experiment,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    rows: TrainingRows,
) -> tuple[Experiment, TrainingRows]:
    """Rows that are chats, checked, and the experiment with the weights of their turns."""
    rows = check_chats(experiment, tokenizer, rows)
    if any(map(carries_weights, rows.sets)):
        experiment = with_turn_weights(experiment, args, rows.train)
    if experiment.trainer.form == "prompt" and hasattr(args, "chat_template_kwargs"):
        rows = rows.map(functools.partial(write_prompts, tokenizer, args))
    return experiment, rows


def _build_seal(run: Run, args: TrainingArguments) -> Seal:
    """The seal of the checkpoints, and how many of them are kept."""
    checkpoints_kept = run.experiment.trainer.args.get("save_total_limit") or CHECKPOINTS_KEPT
    sick_steps = steps_to_notice(run.experiment.tolerate)
    return Seal(checkpoints_kept, sick_steps, upstream.cycle_steps(vars(args)), run.set_status)


def _exchanging_context(
    experiment: Experiment,
    args: TrainingArguments,
    rewards: BuiltRewards,
    tokenizer: PreTrainedTokenizerBase,
    curriculum: RowCurriculum | None = None,
) -> ExchangingContext:
    """The context in which a trainer steps, in which its prompts may be exchanged for others."""
    times = experiment.trainer.dynamic_sampling
    if not times and curriculum is None:
        return Hooks.exchanging
    if curriculum is not None and not upstream.samples_groups(experiment.trainer.target):
        return curriculum.choosing
    completions = args.per_device_train_batch_size * args.steps_per_generation
    if completions % args.num_generations:
        raise ConfigError(
            Fault(
                where="trainer.dynamic_sampling" if times else "trainer.curriculum",
                found=f"set, but a process samples {completions} completions, in groups of "
                f"{args.num_generations}",
                expected="whole groups in each process",
                fix=f"trainer.args.per_device_train_batch_size={args.num_generations}",
            )
        )
    score = Rewards(rewards.functions, args.reward_weights, tokenizer)
    scored = rewards.panel.scored if rewards.panel else ScoredCompletions()
    return DynamicSampling(times, experiment.seed, score, scored, curriculum).exchanging


def _complete(
    experiment: Experiment,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    rules: list[BoundRule],
    reward_models: Sequence[ModelReward],
    calls: CallLog | None,
) -> None:
    """Put reward models where a built trainer computes, and complete its batches and callbacks.

    Batches get a collator around the trainer's own, weights and lengths.
    """
    if calls is not None:
        trainer.add_callback(CallSteps(calls))
    for reward_model in reward_models:
        reward_model.place(trainer)
    around = build_collator(experiment.collator, tokenizer, inner=trainer.data_collator)
    trainer.data_collator = around or trainer.data_collator
    if rules:
        set_weights(trainer, rules)
    group_lengths(trainer)


@contextlib.contextmanager
def _refusals_of(where: str) -> Iterator[None]:
    """Raise a ValueError of a TRL constructor as a ConfigError, of values that cannot work."""
    try:
        yield
    except pa.ArrowInvalid:  # a ValueError too, of a file in the cache
        raise
    except ValueError as error:
        if own_place(error):
            raise
        raise ConfigError(
            Fault(
                where=where,
                found=reason_of(error),
                expected="values that go together",
            )
        ) from error


def _check_stop_strings(experiment: Experiment, args: TrainingArguments, model: Model) -> None:
    """Raise ConfigError where a library is to sample with stop strings, which it cannot here."""
    generation = getattr(model, "generation_config", None)
    strings = getattr(generation, "stop_strings", None)
    part = experiment.trainer
    samples = upstream.samples_by_library(part.target, upstream.config_fields(part.args))
    if strings and samples and not getattr(args, "use_vllm", False):
        raise ConfigError(no_stop_strings(strings, str(experiment.model.path)))
