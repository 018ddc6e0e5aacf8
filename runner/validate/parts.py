"""Parts, and fields of the trainer's config, that are each right and do not go together.

A part that the trainer's own constructor does not name cannot be served, and one that it lives on must be there.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from runner.config import sharding
from runner.config.machines import processes_of, words_for
from runner.config.menu import read_options
from runner.dataset.detect import read_layout
from runner.dataset.disk import MAX_BYTES_READ, check_files, find_files, read_columns
from runner.dataset.form import FORMS, FORMS_FOR, TRAINER_FORMS, Role, fits
from runner.dataset.request import named_sets
from runner.errors import DataError, Fault, fault
from runner.metric.ask import kind_of
from runner.model.check import new_tokens, overrides_answers
from runner.report.objective import CLOCK
from runner.schema import upstream
from runner.schema.read import Signature, read_signature
from runner.schema.source import Definition, find_definition, has_method
from runner.schema.text import Config, Node, last_key, named, nearest, nodes, scalars, short_text, to_text
from runner.schema.type import shortened
from runner.tracker.variable import find_foreign_variables
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import RANGES, is_plain_number, misfit_number, range_in_group

# Rewards that make something of rows of a form, before a model that judges; the first is what to type.
REWARDS_FOR = {"preference": [], "demonstration": ["exact_match", "final_answer", "overlap"], "prompt": []}
OPTIONAL_GROUPS = ("reward", "peft", "collator", "callback", "optimizer")  # the others every run needs


def find_part_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each part that is missing, in vain, or at odds with another."""
    trainer = context.trainer
    if not trainer or not trainer.parameters:
        return
    for group in OPTIONAL_GROUPS:  # none that the trainer's constructor does not name
        node = context.cfg.get(group)
        is_free = not _is_given(node) or trainer.is_open or _changes_model(context, node)
        if not is_free and not any(upstream.FROM_GROUP.get(name) == group for name in trainer.parameters):
            off = "none" if "none" in context.menu.get(group, ()) else "null"
            yield fault("validate.in_vain", group=group, trainer=trainer.name, off=off)
    yield from _not_given(context, trainer)
    of_fields = (_steps, _exclusions, _batches) if context.signature(context.args) else ()
    for find in (_adapter, _strategy, _parameter_groups, _patterns, _selection, *of_fields):
        yield from find(context)


def _is_given(node: object) -> bool:
    return any(entry is not None for entry in node.values()) if isinstance(node, dict) else bool(node)


def _changes_model(context: ValidationContext, node: object) -> bool:
    """True for a part that changes the model itself, so that no trainer needs to know of it."""
    signature = context.signature(node)
    return signature is not None and "model" in signature.parameters


def _not_given(context: ValidationContext, trainer: Signature) -> Iterator[Fault]:
    node = context.mapping("trainer")
    given = _is_given(context.cfg.get("reward")) or node.get(upstream.ENVIRONMENT_FACTORY)
    if upstream.REWARD_FUNCS in trainer.parameters and not given and not context.args.get(upstream.REWARD_MODEL_PATH):
        options = _rewards_for(context)
        expected = f"one of {shortened(options)}" if options else "entries with a _target_"
        fix = f"={options[0]}" if options else "reward.<name>._target_=<module.name>"
        yield fault("validate.no_reward", trainer=trainer.name, expected=expected, fix=fix)
    rewards = len(named(context.mapping("reward"), "reward")) + bool(context.args.get(upstream.REWARD_MODEL_PATH))
    weights = context.args.get(upstream.REWARD_WEIGHTS)
    if isinstance(weights, list) and given and len(weights) != rewards:
        count = "1 reward" if rewards == 1 else f"{rewards} rewards"
        yield fault("validate.number_of_weights", weights=len(weights), rewards=count, ones=to_text([1.0] * rewards))
    shares = {f"{ARGS}{name}": context.args.get(name) for name in (upstream.REWARD_WEIGHTS, upstream.LOSS_WEIGHTS)}
    entries = named(context.mapping("reward"), "reward")
    parts = [entry for entry in entries.values() if isinstance(entry, dict)]
    shares["reward"] = [entry.get("weight", 1.0) for entry in parts]
    sides = [context.field(name) for name in (upstream.DESIRABLE_WEIGHT, upstream.UNDESIRABLE_WEIGHT)]
    if None not in sides:
        shares[f"{ARGS}{upstream.DESIRABLE_WEIGHT}"] = sides
    for where, values in shares.items():
        if isinstance(values, list) and values and not any(values):
            found = f"{short_text(values)}: nothing would be learnt from them"
            off = f"reward.{next(iter(entries))}.weight=1" if where == "reward" else f"leave {where} out"
            yield Fault(where, found, "a weight that is not 0", off)
    if upstream.TEACHER_MODEL in trainer.parameters and not node.get(upstream.TEACHER_MODEL):
        yield fault("validate.no_teacher", trainer=trainer.name)


def _rewards_for(context: ValidationContext) -> list[str]:
    rows, options = context.mapping("dataset"), context.options("reward")
    form, given = rows.get("form"), cast("dict[Role, str]", context.mapping("dataset.columns"))
    if form is None and isinstance(path := rows.get("path"), str):
        with contextlib.suppress(DataError):  # which the check of the rows tells
            if files := find_files(path):
                check_files(files, MAX_BYTES_READ)
                form = read_layout(read_columns(files, MAX_BYTES_READ), {}, given=given).form
    fitting = [*next(names for to, names in REWARDS_FOR.items() if fits(form, to) or to == "prompt"), "chat_model"]
    return [name for name in fitting if name in options] + [name for name in options if name not in fitting]


def _adapter(context: ValidationContext) -> Iterator[Fault]:
    quant, peft = context.mapping("quant"), context.mapping("peft")
    signature = context.signature(peft)
    if quant:
        adapter = Path(str(context.mapping("model").get("path")), "adapter_config.json")  # which is trained on
        if (not _is_given(context.cfg.get("peft")) or _changes_model(context, peft)) and not adapter.is_file():
            yield fault("validate.quantised", option="lora" if "lora" in context.options("peft") else "<an adapter>")
        bits = [name for name in ("load_in_4bit", "load_in_8bit") if quant.get(name)]
        if str(quant.get("_target_")).endswith("BitsAndBytesConfig") and len(bits) != 1:
            yield fault("validate.both_bits") if bits else fault("validate.no_bits")
    yield from _find_patterns_of_ranks(peft)
    if peft.get("inference_mode") is True:
        yield Fault("peft.inference_mode", "true: nothing of the adapter would train", "false", "=false")
    if peft.get("init_lora_weights") is False:
        found = "false: its random weights would change the model before the first step"
        yield Fault("peft.init_lora_weights", found, "a start that changes nothing", "=true")
    if peft.get("init_lora_weights") == "eva":
        found = "eva, a start that is computed from rows, and nobody computes it here"
        yield Fault("peft.init_lora_weights", found, "another start", "=pissa")
    if peft.get("target_modules") == []:
        yield Fault("peft.target_modules", "[]: no layer would get an adapter", "layers", "=all-linear")
    config = context.signature(context.args)
    if has_method(peft.get("_target_"), "prepare_model") and config and "critic" in config.parameters:
        yield fault("validate.tuner_beside_critic", trainer=context.option)
    if signature and peft.get("full") and _changes_model(context, peft):
        yield fault("validate.whole_layers", kind=signature.name)
    added, known = new_tokens(context.mapping("model.tokenizer")), signature.parameters if signature else {}
    is_whole = peft.get("full") or peft.get("modules_to_save") or "trainable_token_indices" in known
    if added and signature and "inference_mode" in known and not is_whole:
        yield fault("model.untrained_tokens", kind=signature.name)
    model, trainer = context.mapping("model"), context.trainer
    if quant and overrides_answers(model):
        yield fault("validate.rounded_base")
    routed = [key for key in context.mapping("model.config") if "router" in str(key)]
    yield from (fault("validate.no_router_loss", key=key) for key in routed if config and "critic" in config.parameters)
    loader = "vLLM" if context.args.get(upstream.USE_VLLM) or context.args.get("rollout_engine") == "vllm" else ""
    loader = trainer.name if trainer and upstream.takes_path(trainer) else loader
    own = {"config": overrides_answers(model), "tokenizer.add_tokens": added}
    yield from (fault("validate.loaded_elsewhere", key=key, loader=loader) for key in own if loader and own[key])


def _find_patterns_of_ranks(peft: Node) -> Iterator[Fault]:
    """A fault for each rank, or scale, of some modules that an adapter cannot have."""
    pattern = peft.get("rank_pattern")
    for module, rank in pattern.items() if isinstance(pattern, Mapping) else ():
        if isinstance(rank, bool) or not isinstance(rank, int) or rank not in RANGES["rank"]:
            where = f"peft.rank_pattern.{module}"
            yield Fault(where, short_text(rank), f"a whole number, {RANGES['rank']}", "=8")
    pattern = peft.get("alpha_pattern")
    for module, alpha in pattern.items() if isinstance(pattern, Mapping) else ():
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or alpha not in RANGES["positive"]:
            where = f"peft.alpha_pattern.{module}"
            yield Fault(where, short_text(alpha), f"a number {RANGES['positive']}", "=16")


def _strategy(context: ValidationContext) -> Iterator[Fault]:
    args, quant, signature = context.args, context.mapping("quant"), context.signature(context.cfg.get("peft"))
    given = [name for name in sharding.FIELDS if args.get(name)]
    if signature and upstream.FSDP in given:
        if "num_virtual_tokens" in signature.parameters:
            yield fault("validate.virtual_tokens", kind=signature.name)
        if context.mapping("model").get("merge") or overrides_answers(context.mapping("model")):
            yield fault("validate.merged_shards")
    whole = [name for name in given if quant.get("load_in_8bit") or (quant and name == upstream.DEEPSPEED)]
    if whole:
        where = f"{ARGS}{whole[0]}"
        yield fault("validate.split_weights", where=where, fix=sharding.unspread(where, context.typed))
    elif quant.get("load_in_4bit") and upstream.FSDP in given and not quant.get("bnb_4bit_quant_storage"):
        yield fault("validate.split_bytes")
    signature, fsdp = context.signature(args), context.mapping(f"{ARGS}{upstream.FSDP_CONFIG}")
    if signature and "critic" in signature.parameters and fsdp.get("cpu_ram_efficient_loading"):
        yield fault("validate.critic")
    if given and context.mapping("model").get("device_map"):
        yield fault("validate.two_placements")
    if context.cfg.get("resume") and (split := sharding.split_layers(args)):
        yield fault("validate.split_layers", field=split[0], why=sharding.NOT_RESUMED)
    yield from _sizes(context, context.mapping(f"{ARGS}{upstream.PARALLELISM_CONFIG}"))


def _sizes(context: ValidationContext, sizes: Mapping[str, object]) -> Iterator[Fault]:
    where, processes = f"{ARGS}{upstream.PARALLELISM_CONFIG}", processes_of(context.cfg)
    counts = {name: size for name, size in sizes.items() if name.endswith("_size") and isinstance(size, int)}
    total = math.prod(counts.values())
    if total < 1 or total == 1 or counts.get("sp_size", 1) > 1:  # groups of sp_size are DeepSpeed's own
        return
    if total != processes:
        rest, left = divmod(processes, total // counts.get("dp_shard_size", 1))
        fix = words_for(context.cfg, total) + ("" if left or rest < 2 else f", or {where}.dp_shard_size={rest}")
        product = " x ".join(f"{name} {size}" for name, size in counts.items())
        yield fault("validate.sizes", where=where, product=product, total=total, processes=processes, fix=fix)
    if context.args.get(upstream.FSDP) and counts.get("dp_shard_size", 1) * counts.get("cp_size", 1) == 1:
        yield fault("validate.no_shards", where=where, rest=processes // counts.get("tp_size", 1))


def _parameter_groups(context: ValidationContext) -> Iterator[Fault]:
    signature = context.signature(context.cfg.get("optimizer"))
    if not signature:
        return
    step = read_signature(f"{signature.target}.step")
    if step and "closure" in step.required:
        needs = f"{signature.name}, whose step needs a closure, and the trainer gives it none"
        yield Fault("optimizer._target_", needs, "an optimizer that steps by gradients alone", "optimizer=adamw")
    known = [*(name for name in signature.parameters if name not in ("params", "groups", "scheduler")), "lr_ratio"]
    found = find_definition(signature.target)  # whose code may read more of a group than its constructor takes
    text = found.module.text.replace("'", '"') if isinstance(found, Definition) else ""
    if "named_parameters" in known and context.mapping("optimizer.groups"):
        yield fault("validate.own_groups", kind=signature.name)
        return
    for pattern, settings in context.mapping("optimizer.groups").items():
        if not isinstance(settings, dict):
            yield fault("validate.no_settings", pattern=pattern, found=short_text(settings))
            continue
        for key in (key for key in settings if key not in known and f'"{key}"' not in text):
            names = {"known": shortened(known), "near": [*nearest(key, known), "lr_ratio"][0]}
            yield fault("validate.no_such_setting", pattern=pattern, key=key, kind=signature.name, **names)
        for key, value in settings.items():
            misfit = misfit_number(f"optimizer.groups.{pattern}.{key}", value, range_in_group("optimizer", key))
            if misfit:
                fix = f"optimizer.groups={{{pattern}: {{{key}: <number>}}}}"
                yield replace(misfit, fix=fix)


def _patterns(context: ValidationContext) -> Iterator[Fault]:
    groups, example = context.mapping("optimizer.groups"), "optimizer.groups={<pattern>: {lr_ratio: 0.1}}"
    patterns = [(f"optimizer.groups.{pattern}", pattern, example) for pattern in groups]
    for path, value in scalars({group: context.cfg.get(group) for group in ("reward", "metric", "peft")}):
        if last_key(path) in (("matching", "full", "target_modules") if path.startswith("peft.") else ("pattern",)):
            where, _, index = path.rpartition(".")
            patterns.append((where, value, "=['<pattern>']") if index.isdigit() else (path, value, "='<pattern>'"))
    for path, node in nodes({group: context.cfg.get(group) for group in ("reward", "metric")}):
        if node["_target_"] == "runner.reward.remote.Remote" and isinstance(url := node.get("url"), str):
            from runner.reward.remote import find_address_faults  # with all that asks servers

            yield from find_address_faults(url, f"{path}.url")
    for where, pattern, fix in patterns:
        try:
            re.compile(pattern if isinstance(pattern, str) else "")
        except re.error as error:
            yield fault("validate.pattern", where=where, pattern=pattern, error=error, fix=fix)


def _selection(context: ValidationContext) -> Iterator[Fault]:
    args = context.args
    wanted = str(args.get(upstream.METRIC_FOR_BEST_MODEL) or "")
    for name, entry in context.entries("metric").items():
        better, name = entry.get("better") if isinstance(entry, dict) else None, name.removeprefix("metric.")
        chosen = args.get(upstream.GREATER_IS_BETTER, not wanted.endswith("loss"))
        if better and (wanted == name or wanted.endswith(f"_{name}")) and chosen is not (better == "higher"):
            right = {"other": "higher" if chosen else "lower", "right": to_text(better == "higher")}
            yield fault("validate.better", wanted=wanted, better=better, **right)
    figure = upstream.ranking_figure(context.cfg)
    misleading = upstream.misleading_fields(args) if figure != "loss" and wanted.endswith("loss") else []
    for field in misleading:
        yield Fault(
            f"{ARGS}{upstream.METRIC_FOR_BEST_MODEL}",
            f"{wanted}, which {field}={short_text(args[field])} may raise while the model learns",
            "a held-out figure that tells how well the model does",
            f"=eval_{figure}",
        )
    evaluates, best = _evaluates(context), upstream.LOAD_BEST_MODEL_AT_END
    signatures = map(context.signature, context.entries("callback").values())
    if any(signature and "EarlyStoppingCallback" in signature.lineage for signature in signatures):
        if not evaluates:
            yield fault("validate.stops_unseen")
        if not wanted and context.field(best) is not True:
            found = "none, and a training is to stop early"
            yield Fault(f"{ARGS}{upstream.METRIC_FOR_BEST_MODEL}", found, "a held-out figure", f"=eval_{figure}")
    if context.field(best) is not True:
        return
    if not evaluates:
        yield fault("validate.best_of_nothing")
        return
    saves, strategy = context.field(upstream.SAVE_STRATEGY), context.field(upstream.EVAL_STRATEGY)
    if saves != "best" and isinstance(saves, str) and saves != strategy:
        yield fault("validate.best_not_saved", saves=saves, strategy=strategy)
    each, step = context.field(upstream.SAVE_STEPS), context.field(upstream.EVAL_STEPS)
    if saves == strategy == "steps" and all(is_plain_number(one) and one >= 1 for one in (each, step)) and each % step:
        yield fault("validate.best_between", each=each, step=step, right=max(1, round(each / step)) * step)


# --- Fields of the trainer's config -----------------------------------------------------------------
# Most of what follows its constructor would refuse too, but only after the libraries are imported; the rest it would
# take, and learn nothing, or something else.
def _evaluates(context: ValidationContext) -> bool:
    return context.field(upstream.EVAL_STRATEGY) not in ("no", False, None)


def _steps(context: ValidationContext) -> Iterator[Fault]:
    steps, warmup = context.args.get(upstream.MAX_STEPS), context.args.get(upstream.WARMUP_STEPS)
    if is_plain_number(steps) and is_plain_number(warmup) and 1 <= steps <= warmup:
        yield fault("validate.only_warmup", warmup=warmup, steps=steps)
    # Steps that nobody typed may have come with the model.
    typed = [f"{ARGS}{name}" in context.typed for name in (upstream.NUM_TRAIN_EPOCHS, upstream.MAX_STEPS)]
    if typed == [True, False] and is_plain_number(steps) and steps > 0:
        yield fault("validate.overruled", epochs=context.args.get(upstream.NUM_TRAIN_EPOCHS), steps=steps)
    for name in (upstream.LOGGING_STEPS, upstream.SAVE_STEPS, upstream.EVAL_STEPS):
        value = context.field(name)
        if is_plain_number(value) and value > 1 and value != int(value):
            yield fault("validate.broken_steps", field=name, found=short_text(value), right=round(value))


def _exclusions(context: ValidationContext) -> Iterator[Fault]:
    args, parallelism = context.args, context.field(upstream.PARALLELISM_CONFIG)
    fetched, schedule = context.field(upstream.DATALOADER_PREFETCH_FACTOR), context.field(upstream.LR_SCHEDULER_TYPE)
    form, head = (context.cfg["trainer"].get(name) for name in ("form", "head"))
    if "ForSequenceClassification" in (target := str(context.mapping("model").get("_target_"))) and head == "lm":
        yield fault("validate.classifier", target=target)
    if args.get(upstream.FP16) is True and args.get(upstream.BF16) is True:
        yield fault("validate.two_precisions")
    optimizer = str(args.get(upstream.OPTIM))
    if optimizer.startswith(("galore", "apollo")) and not args.get(upstream.OPTIM_TARGET_MODULES):
        yield fault("validate.no_low_rank_layers", optimizer=optimizer)
    if fetched and context.field(upstream.DATALOADER_NUM_WORKERS) == 0:
        yield fault("validate.no_workers", fetched=fetched)
    if schedule in upstream.SCHEDULES_BY_SCORE and not _evaluates(context):
        yield fault("validate.schedule_by_score", schedule=schedule)
    if isinstance(parallelism, dict) and "_target_" not in parallelism:
        yield fault("validate.parallelism")
    sampling = context.field(upstream.TRAIN_SAMPLING_STRATEGY)
    if sampling in upstream.OTHER_STEPS[upstream.TRAIN_SAMPLING_STRATEGY] and form in ("messages", "prompt"):
        yield fault("validate.no_lengths", sampling=sampling, form=form)
    if context.field(upstream.PACKING) is True and "max_length" in args and args["max_length"] is None:
        yield fault("validate.no_packed_length")


def _batches(context: ValidationContext) -> Iterator[Fault]:
    own, rounds = context.field(upstream.GENERATION_BATCH_SIZE), context.field(upstream.STEPS_PER_GENERATION)
    count, size = context.field(upstream.NUM_GENERATIONS), context.field(upstream.PER_DEVICE_TRAIN_BATCH_SIZE)
    rounds = rounds or context.field(upstream.GRADIENT_ACCUMULATION_STEPS)
    if all(isinstance(each, int) and each >= 1 for each in (count, size, rounds)):
        processes = processes_of(context.cfg)
        batch = own or size * rounds * processes
        if isinstance(batch, int) and count > 1 and batch % count:
            if own:
                step = math.lcm(count, size * processes)
                path = f"{ARGS}{upstream.GENERATION_BATCH_SIZE}"
                expected = "a multiple of num_generations and of the rows of a step"
                found = f"{own}, of {count} completions a prompt"
                yield Fault(path, found, expected, f"={math.ceil(own / step) * step}")
            else:
                yield fault("validate.broken_groups", count=count, batch=batch)


# --- Where the keys have no fault -------------------------------------------------------------------
def find_mismatches(cfg: Config, menu: Mapping[str, Sequence[str]]) -> list[Fault]:
    """A fault for each two parts of a configuration without other faults that do not go together."""
    rows, args, form = cfg["dataset"], cfg["trainer"]["args"], cfg["trainer"].get("form")
    faults = []
    if form not in TRAINER_FORMS:
        near = [*(FORMS[form].becomes if form in FORMS else ()), *nearest(str(form), TRAINER_FORMS), "<one of them>"]
        faults.append(Fault("trainer.form", str(form), ", ".join(TRAINER_FORMS), f"={near[0]}"))
    elif not fits(rows.get("form"), form):
        forms = {name: (node.get("dataset") or node).get("form") for name, node in read_options("dataset").items()}
        able = [name for name in menu.get("dataset", ()) if forms.get(name) and fits(forms[name], form)]
        fix = f"=<{' | '.join(able)}>" if able else "=local dataset.path=<file>"
        known = {"raw": rows.get("form"), "path": rows.get("path"), "to": form, "forms": ", ".join(FORMS_FOR[form])}
        faults.append(fault("validate.other_form", **known, fix=fix))
    faults += [*find_metric_faults(cfg), *_callback_faults(cfg), *find_foreign_variables(cfg["tracker"])]
    holds_out = "split" not in rows or (rows["split"] or {}).get("eval")
    if args.get(upstream.EVAL_STRATEGY, "no") not in ("no", False) and not holds_out:
        faults.append(fault("validate.nothing_held_out", strategy=args[upstream.EVAL_STRATEGY]))
    objective = str(cfg.get("objective") or "")
    if objective.startswith("eval_") and not holds_out:
        faults.append(Fault("objective", f"{objective}, and nothing is held out", "held-out rows", "=loss"))
    if rows.get("streaming") and int(args.get(upstream.MAX_STEPS) or -1) < 1:
        faults.append(fault("validate.endless"))
    return faults


def find_metric_faults(cfg: Config) -> Iterator[Fault]:
    """A fault for each metric that this trainer, or these rows, cannot answer; read from the configuration alone."""
    head, rows, metrics = cfg["trainer"]["head"], cfg["dataset"], named(cfg["metric"] or {}, "metric")
    is_known = "split" in rows  # a dataset of one's own holds out what it will
    evals = (rows["split"] or {}).get("eval") if is_known else None
    if metrics and is_known and not evals:
        yield fault("validate.nothing_to_measure", metrics=", ".join(metrics))
    known = named_sets(evals)
    for name, node in metrics.items():
        if (signature := read_signature(node["_target_"])) is None:
            continue
        where, arguments, path = f"metric.{name}", set(signature.parameters), rows.get("path")
        if f"_{name}".endswith((*CLOCK, "_time")) or name in upstream.FIGURES:
            found = f"the name {name}, under which the trainer logs a figure of its own"
            yield Fault(where, found, "another name", f"metric.<name>._target_={node['_target_']}")
        kind = kind_of(arguments)
        if head == "score" and (kind == "sampled" or arguments & {"log_probs", "logits", "labels"}):
            wants = "completions" if kind == "sampled" else "what a model says of tokens"
            yield fault("validate.only_scores", where=where, wants=wants)
        elif not fits(rows.get("form"), "prompt" if kind == "sampled" else "answer"):
            wanted = "prompts" if kind == "sampled" else "known answers"
            yield fault("validate.rows_without", where=where, form=rows["form"], path=path, wanted=wanted)
        elif evals and (unknown := [on for on in node.get("on") or () if on not in known]):
            names = ", ".join(filter(None, known)) or "one set without a name; leave it out"
            yield fault("validate.no_such_set", where=where, unknown=", ".join(unknown), names=names)
        if node.get("preprocess") and (kind == "sampled" or head == "score"):
            yield fault("validate.no_logits", where=where)


def _callback_faults(cfg: Config) -> Iterator[Fault]:
    node, rows = cfg["callback"] or {}, cfg["dataset"]
    for name, entry in named(node, "callback").items():
        signature = read_signature(entry["_target_"])
        needed = set(signature.required) - set(entry) if signature else set()
        where = "callback" if entry is node else f"callback.{name}"
        is_alone = not cfg["peft"] and "critic" not in upstream.config_fields(cfg["trainer"]["args"])
        if entry["_target_"] == "trl.BEMACallback" and not is_alone:
            yield fault("validate.averages_whole", where=where)
        if "generate" in needed and cfg["trainer"]["head"] == "score":
            yield fault("validate.writes_none", where=where)
        elif "prompts" in needed and not fits(rows.get("form"), "prompt"):
            yield fault("validate.without_prompts", where=where, form=rows["form"], path=rows.get("path"))
        elif "prompts" in needed and "split" in rows and not (rows["split"] or {}).get("eval"):
            yield fault("validate.no_prompts", where=where)
