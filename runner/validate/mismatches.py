"""Rows, metrics and callbacks against the trainer, where the keys alone have no fault."""

from collections.abc import Iterator, Mapping, Sequence

from runner.config.experiment import Tracking, TrainerPart
from runner.config.menu import read_options
from runner.dataset.form import FORMS, FORMS_FOR, TRAINER_FORMS, fits
from runner.dataset.request import named_sets
from runner.errors import Fault
from runner.metric.ask import kind_of
from runner.run.history import CLOCK
from runner.schema import upstream
from runner.schema.did_you_mean import best_guess
from runner.schema.read import Signature, read_signature
from runner.schema.text import Config, Node, named
from runner.tracker.variable import find_foreign_variables


def find_mismatches(cfg: Config, menu: Mapping[str, Sequence[str]]) -> list[Fault]:
    """A fault for each two parts of a configuration without other faults that do not fit."""
    faults = list(_find_form_faults(cfg, menu))
    faults += find_metric_faults(cfg)
    faults += _find_callback_faults(cfg)
    faults += find_foreign_variables(Tracking.read(cfg["tracker"]))
    faults += _find_held_out_faults(cfg)
    faults += _find_engine_faults(cfg)
    rows = cfg["dataset"]
    max_steps = int(cfg["trainer"]["args"].get("max_steps") or -1)
    if rows.get("streaming") and max_steps < 1:
        faults.append(
            Fault(
                where="dataset.streaming",
                found="a stream of unknown length",
                expected="a number of steps",
                fix="trainer.args.max_steps=<steps>",
            )
        )
    return faults


def _find_form_faults(cfg: Config, menu: Mapping[str, Sequence[str]]) -> Iterator[Fault]:
    """The fault of rows that cannot become those of the trainer."""
    rows = cfg["dataset"]
    form = cfg["trainer"].get("form")
    if form not in TRAINER_FORMS:
        becomes = FORMS[form].becomes if form in FORMS else ()
        likeliest = best_guess(str(form), TRAINER_FORMS, "<one of them>")
        if becomes:
            likeliest = next(iter(becomes))
        yield Fault(
            where="trainer.form",
            found=str(form),
            expected=", ".join(TRAINER_FORMS),
            fix=f"={likeliest}",
        )
        return
    if fits(rows.get("form"), form):
        return
    forms = {}
    for name, option in read_options("dataset").items():
        node = option.get("dataset") or option
        forms[name] = node.get("form")
    able = []
    for name in menu.get("dataset", ()):
        if forms.get(name) and fits(forms[name], form):
            able.append(name)
    fix = "=local dataset.path=<file>"
    if able:
        fix = f"=<{' | '.join(able)}>"
    yield Fault(
        where="dataset",
        found=f"{rows.get('form')} rows ({rows.get('path')})",
        expected=f"rows that can become {form} rows: {', '.join(FORMS_FOR[form])}",
        fix=fix,
    )


def _holds_out(rows: Node) -> bool:
    """True for rows of which some are held out, as a dataset of the user's own may do."""
    if "split" not in rows:
        return True
    return bool((rows["split"] or {}).get("eval"))


def _find_held_out_faults(cfg: Config) -> Iterator[Fault]:
    """A fault for each setting that asks for held-out rows where there are none."""
    if _holds_out(cfg["dataset"]):
        return
    strategy = cfg["trainer"]["args"].get("eval_strategy", "no")
    if strategy not in ("no", False):
        yield Fault(
            where="trainer.args.eval_strategy",
            found=f"{strategy}",
            expected="held-out rows",
            fix="dataset.split.eval=<split>",
        )
    objective = str(cfg.get("objective") or "")
    if objective.startswith("eval_"):
        yield Fault(
            where="objective",
            found=f"{objective}, but no rows are held out",
            expected="held-out rows",
            fix="=loss",
        )


def _find_engine_faults(cfg: Config) -> Iterator[Fault]:
    """The fault of an engine for held-out answers where none are sampled."""
    trainer = TrainerPart.read(cfg["trainer"])
    if cfg.get("engine") is None or trainer.is_online:
        return
    for node in named(cfg["metric"] or {}, "metric").values():
        signature = read_signature(node["_target_"])
        if signature is None or kind_of(signature.parameters) == "sampled":
            return
    yield Fault(
        where="engine",
        found=f"{cfg['engine']}, but no metric samples held-out answers",
        expected="such a metric, or no engine",
        fix="metric=exact, or leave engine out",
    )


def find_metric_faults(cfg: Config) -> Iterator[Fault]:
    """A fault for each metric that this trainer, or these rows, cannot answer."""
    rows = cfg["dataset"]
    metrics = named(cfg["metric"] or {}, "metric")
    if metrics and not _holds_out(rows):
        yield Fault(
            where="metric",
            found=f"{', '.join(metrics)}, but there are no held-out rows to measure",
            expected="held-out rows, or no metric",
            fix="dataset.split.eval=<split>, or metric=none",
        )
    for name, node in metrics.items():
        signature = read_signature(node["_target_"])
        if signature is not None:
            yield from _find_faults_of_metric(name, node, signature, cfg)


def _find_faults_of_metric(
    name: str, node: Node, signature: Signature, cfg: Config
) -> Iterator[Fault]:
    where = f"metric.{name}"
    leave_out = f"{where}=null, or metric=none"
    rows = cfg["dataset"]
    gives_scores = cfg["trainer"]["head"] == "score"
    arguments = set(signature.parameters)
    kind = kind_of(arguments)
    is_sampled = kind == "sampled"
    if f"_{name}".endswith((*CLOCK, "_time")) or name in upstream.FIGURES:
        yield Fault(
            where=where,
            found=f"the name {name}, under which the trainer logs a figure of its own",
            expected="another name",
            fix=f"metric.<name>._target_={node['_target_']}",
        )
    unknown_sets = _find_unknown_sets(node, rows)
    reads_tokens = kind == "live" or bool(arguments & {"log_probs", "logits", "labels"})
    if gives_scores and (is_sampled or reads_tokens):
        judged = "completions" if is_sampled else "a model's predictions of tokens"
        yield Fault(
            where=where,
            found=f"it judges {judged}, but a reward model gives one score per text",
            expected="a metric of scores, such as metric=auc",
            fix=leave_out,
        )
    elif kind != "live" and not fits(rows.get("form"), "prompt" if is_sampled else "answer"):
        wanted = "prompts" if is_sampled else "known answers"
        yield Fault(
            where=where,
            found=f"{rows['form']} rows ({rows.get('path')}), but it needs {wanted}",
            expected=f"rows with {wanted}, or no such metric",
            fix=leave_out,
        )
    elif unknown_sets:
        names = [name for name in named_sets(rows["split"]["eval"]) if name]
        yield Fault(
            where=f"{where}.on",
            found=f"no held-out set {', '.join(unknown_sets)}",
            expected=", ".join(names) or "one set without a name; leave it out",
            fix="dataset.split.eval={<name>: <split>}",
        )
    if node.get("preprocess") and (is_sampled or gives_scores):
        yield Fault(
            where=f"{where}.preprocess",
            found="set, but there are no logits of tokens to process",
            expected="none",
            fix="=null",
        )


def _find_unknown_sets(metric: Node, rows: Node) -> list[str]:
    """The held-out sets that a metric names and the rows do not have."""
    evals = (rows.get("split") or {}).get("eval")
    if not evals:
        return []
    sets = named_sets(evals)
    return [name for name in metric.get("on") or () if name not in sets]


def _find_callback_faults(cfg: Config) -> Iterator[Fault]:
    """A fault for each callback that this trainer, or these rows, cannot serve."""
    callbacks = cfg["callback"] or {}
    rows = cfg["dataset"]
    fields = upstream.config_fields(cfg["trainer"]["args"])
    is_whole_model = not cfg["peft"] and "critic" not in fields
    for name, node in named(callbacks, "callback").items():
        where = "callback" if node is callbacks else f"callback.{name}"
        signature = read_signature(node["_target_"])
        needed: set[str] = set()
        if signature:
            needed = set(signature.required) - set(node)
        if node["_target_"] == "trl.BEMACallback" and not is_whole_model:
            yield Fault(
                where=where,
                found="it makes a model anew from its config, to average it",
                expected="no adapter and no critic",
                fix="callback=none",
            )
        if "generate" in needed and cfg["trainer"]["head"] == "score":
            yield Fault(
                where=where,
                found="it samples completions, but a reward model writes none",
                expected="a trainer of a language model",
                fix=f"{where}=null, or callback=none",
            )
        elif "prompts" in needed and not fits(rows.get("form"), "prompt"):
            yield Fault(
                where=f"{where}.prompts",
                found=f"{rows['form']} rows ({rows.get('path')}), which have no prompts",
                expected="prompts",
                fix=f"{where}.prompts=[<text>, ...], or {where}=null, or callback=none",
            )
        elif "prompts" in needed and not _holds_out(rows):
            yield Fault(
                where=f"{where}.prompts",
                found="none, but there are no held-out rows",
                expected="prompts",
                fix=f"dataset.split.eval=<split>, or {where}.prompts=[<text>, ...]",
            )
