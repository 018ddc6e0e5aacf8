"""Measures a trained model on held-out rows, alone or beside another one."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command import CommandLine, options_of, table_of
from runner.command._request import PARTS, InferenceRequest, read_request
from runner.dataset.form import fits
from runner.errors import ConfigError, DataError, Fault, FolderError
from runner.generate.held_out_rows import find_prompt_fault
from runner.generate.prediction import prediction_key
from runner.generate.run_weights import Weights
from runner.io.files import display_path, to_line, write_json, write_text
from runner.io.terminal import print_visible, progress_bar, quiet
from runner.io.turns import Row
from runner.report.table import Column, format_table
from runner.schema.literal import number
from runner.schema.text import named
from runner.validate.mismatches import find_metric_faults

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.completion import Completion
    from runner.generate.judge import Figures, Score
    from runner.generate.sampler import Model
    from runner.metric.ask import Metric

# prompts, below which what is rare may not have been seen, and no interval can know of it
FEW = 100
READ = table_of("evaluate")["read"]  # metrics of known answers, beside the configured ones


@dataclass
class Side:
    """A model that is evaluated and its figures by set; ``notes`` tell what was not measured, and why."""

    request: InferenceRequest
    notes: list[str] = field(default_factory=list)
    sets: dict[str, Figures] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run, or the model, and which of its weights."""
        return f"{self.request.name} ({self.request.weights.name})"

    def to_json(self) -> dict[str, Any]:
        """The figures, each under the name by which a training logs it: eval_loss."""
        found: dict[str, Any] = {"model": self.name, "rows": {}, "scores": {}, "errors": {}}
        for name, figures in self.sets.items():
            prefix = name if name in ("eval", "train") else f"eval_{name}"
            found["rows"][name] = figures.rows
            found["scores"] |= {f"{prefix}_{key}": value for key, value in figures.scores.items()}
            found["errors"] |= {f"{prefix}_{key}": value for key, value in figures.errors.items()}
        return found


def main(line: CommandLine) -> int:
    """Evaluate the model that the command line names, print a table, and return 0 when the figures are written."""
    from runner.metric.paired import compare

    request, notes = _select_parts(read_request(line, options_of("evaluate"), PARTS))
    sides = [Side(request, notes), *_other_side(line, request)]
    for word, side in zip(("model", "against"), sides, strict=False):
        print(f"{word:<8}  {side.name}", flush=True)
    began = time.monotonic()
    for side in sides:
        measure_side(side)
    facts = request.facts(PARTS)
    facts["weights"] = [
        [side.name, side.request.weights.name, side.request.weights.seal] for side in sides
    ]
    found, comparison = sides[0].to_json() | {"notes": notes}, {}
    if len(sides) > 1:
        seed = request.options["seed"]
        earned = {
            name: (figures.earned, sides[1].sets[name].earned)
            for name, figures in sides[0].sets.items()
        }
        comparison = {
            name: compare(*both, seed) | {"draws": "coupled"}
            for name, both in earned.items()
            if both[0]
        }
        found |= {"against": sides[1].to_json(), "comparison": comparison}
    name = f"{request.data}-{prediction_key(facts)}.json"
    path = Path(request.options.get("to") or request.folder("evaluations") / name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**found, "seconds": round(time.monotonic() - began, 2), "asked": facts})
    written = [
        (side.name, name, row)
        for side in sides
        for name in side.sets
        for row in side.sets[name].completions
    ]
    if written:
        lines = [to_line({"model": model, "set": name, **row}) for model, name, row in written]
        write_text(path.with_suffix(".jsonl"), "".join(lines))
    print_visible("\n".join(to_table(sides, comparison)))
    print(f"to        {display_path(path)}")
    return 0


# --- The command line -----------------------------------------------------------------------------
def _select_parts(request: InferenceRequest) -> tuple[InferenceRequest, list[str]]:
    """Drop metrics and rewards that do not apply unless the user chose them; return notes on the metrics."""
    notes: list[str] = []
    metrics, options = dict(READ[request.head]), request.options
    rows = dict(request.cfg["dataset"])
    if "split" in rows and not (rows["split"] or {}).get("eval"):
        rows["split"] = {"eval": "train"}  # checked as a training would be, which holds rows out
    faults = []
    for name, node in named(request.cfg.get("metric") or {}, "metric").items():
        as_in_training = {
            "trainer": {"head": request.head},
            "dataset": rows,
            "metric": {name: node},
        }
        if (found := list(find_metric_faults(as_in_training))) and "metric" in request.chosen:
            faults += found
        elif found:
            notes.append(f"{name} is left out: {found[0].found}")
        else:
            metrics[name] = node
    unfit = (
        Fault(
            where="reward",
            found="set, but a reward model writes nothing that could earn one",
            expected="none",
            fix="=none",
        )
        if request.head == "score"
        else find_prompt_fault(rows, "reward")
    )
    reward = request.cfg.get("reward") if "reward" in request.chosen or not unfit else None
    faults += [unfit] if reward and unfit else []
    if "against" in options and not reward:
        fix = (
            "reward=exact_match"
            if fits(request.cfg["dataset"].get("form"), "answer")
            else "reward=chat_model"
        )
        faults.append(
            Fault("against", "no reward that could tell which answer is better", "a reward", fix)
        )
    ConfigError.refuse(faults)
    return replace(request, cfg=request.cfg | {"metric": metrics, "reward": reward}), notes


def _other_side(line: CommandLine, request: InferenceRequest) -> list[Side]:
    if (wish := request.options.get("against")) is None:
        return []
    if wish == "start":
        return [Side(replace(request, weights=Weights("start")))]
    words = [word for word in line.overrides if word.startswith("output_root=")]
    try:
        other = read_request(
            replace(line, runs=[wish], overrides=words), options_of("evaluate"), PARTS
        )
    except FolderError as error:
        fixes = [
            re.sub(r"^python -m runner evaluate (?=\S)", "against=", each.fix)
            for each in error.faults
        ]
        error.faults = [
            replace(each, fix=fix) for each, fix in zip(error.faults, fixes, strict=True)
        ]
        raise
    if other.head != request.head:
        raise ConfigError(
            Fault("against", f"{wish} is a {other.head} model", f"an {request.head} model")
        )
    shared = {
        name: request.cfg.get(name)
        for name in ("dataset", "metric", "reward", "allow", "seed", "tolerate")
    }
    return [
        Side(replace(other, options=request.options, cfg=other.cfg | shared, chosen=request.chosen))
    ]


# --- Figures ---------------------------------------------------------------------------------------
def measure_side(side: Side) -> None:
    """Load a model once and measure every set; the model is let go of again, because another may follow."""
    from runner.training.components.model import load_trained
    from runner.training.components.scorers import build_metrics

    request = side.request
    with quiet():
        model, tokenizer = load_trained(request.experiment, request.weights, request.head)
        entries, metrics = (
            named(request.cfg["metric"], "metric"),
            build_metrics(request.experiment.metrics, tokenizer),
        )
        # Every row is looked at, unless the configuration says otherwise.
        metrics = [
            each if "limit" in entries[each.name] else replace(each, limit=None) for each in metrics
        ]
        _measure_answers(
            side, model, tokenizer, [metric for metric in metrics if metric.kind == "read"]
        )
        _measure_sampled(
            side, model, tokenizer, [metric for metric in metrics if metric.kind == "sampled"]
        )
    if not any(figures.scores for figures in side.sets.values()):
        raise DataError(
            Fault(
                "dataset",
                f"nothing to measure: {'; '.join(side.notes)}",
                "prompts or known answers",
            )
        )
    del model
    gc.collect()


def _measure_answers(
    side: Side, model: Model, tokenizer: PreTrainedTokenizerBase, metrics: Sequence[Metric]
) -> None:
    from runner.generate.answer_reader import AnswerReader
    from runner.generate.completion import context_length
    from runner.generate.judge import judge_answers
    from runner.training.components.training_rows import check_texts

    request, is_scorer = side.request, side.request.head == "score"
    own = [metric for metric in metrics if metric.name not in READ[request.head]]
    metrics = (
        metrics
        if fits(request.cfg["dataset"].get("form"), "preference" if is_scorer else "answer")
        else own
    )
    try:
        sets = request.read_sets("answer", ["*"]) if metrics else {}
    except DataError as error:
        if own or is_scorer:
            raise
        sets = {}
        side.notes.append(f"no known answers to read: {error.faults[0].found}")
    for name, rows in sets.items():
        check_texts(
            request.experiment, tokenizer, [rows] if tokenizer.chat_template else [], "answer"
        )
        known = _of_set(metrics, name)
        everything = is_scorer or any(metric.answers == "all" for metric in known)
        with progress_bar(
            f"{name}: known answers", sum(everything or row["label"] for row in rows), "answer"
        ) as bar:
            reader = AnswerReader(
                model, tokenizer, context_length(model), request.options["batch_size"], bar.update
            )
            side.sets[name] = judge_answers(reader, rows, known, is_scorer=is_scorer)


def _measure_sampled(
    side: Side, model: Model, tokenizer: PreTrainedTokenizerBase, metrics: Sequence[Metric]
) -> None:
    from runner.generate.judge import judge_completions
    from runner.model.chat import check_rendering, check_template
    from runner.training.components.training_rows import check_texts

    score = _build_score(side.request, tokenizer) if side.request.cfg.get("reward") else None
    if not metrics and score is None:
        return
    generator = side.request.build_generator(model, tokenizer)
    for name, rows in side.request.read_sets("prompt").items():
        check_template(tokenizer, chats=(chats := isinstance(rows[0]["prompt"], list)))
        check_rendering(tokenizer, ((row, ()) for row in rows if chats))
        check_texts(side.request.experiment, tokenizer, [rows] if chats else [], "prompt")
        with progress_bar(f"{name}: completions", len(rows) * generator.n, "answer") as bar:
            generator.on_progress = bar.update
            figures = judge_completions(generator, rows, _of_set(metrics, name), score)
        written = figures.completions
        figures.scores["ended"] = sum(row["finish"] == "stop" for row in written) / len(written)
        figures.scores["tokens"] = sum(row["tokens"] for row in written) / len(written)
        if name in side.sets:
            figures.scores = side.sets[name].scores | figures.scores
            figures.errors = side.sets[name].errors | figures.errors
        side.sets[name] = figures


def _of_set(metrics: Sequence[Metric], name: str) -> list[Metric]:
    """The metrics that measure a set; the one without a name is called eval here, or train."""
    return [
        metric for metric in metrics if metric.measures("" if name in ("eval", "train") else name)
    ]


def _build_score(request: InferenceRequest, tokenizer: PreTrainedTokenizerBase) -> Score:
    from runner.generate.reward_model import TOKENS_PER_REWARD_PASS
    from runner.ppo.scoring import Rewards
    from runner.reward.outcome import best_device
    from runner.training.components.rewards import build_rewards

    built = build_rewards(request.experiment)
    arguments = request.cfg["trainer"]["args"].get("chat_template_kwargs")
    rewards = Rewards(built.functions, built.weights, tokenizer, template_arguments=arguments)
    rewards.names = list(named(request.cfg["reward"], "reward"))
    for reward in rewards.models:
        reward.requires_grad_(False).to(best_device())

    def score(
        completions: Sequence[Completion], rows: Sequence[Row]
    ) -> tuple[list[float], dict[str, list[float]]]:
        earned_BR, each_BF = rewards(completions, rows, None, TOKENS_PER_REWARD_PASS)
        return earned_BR.nansum(1).tolist(), dict(
            zip(rewards.names, each_BF.T.tolist(), strict=True)
        )

    return score


def to_table(sides: Sequence[Side], comparison: Mapping[str, Any]) -> Iterator[str]:
    """The figures for the terminal, a table for each set."""
    side = sides[0]
    for name, figures in side.sets.items():
        keys, title = list(figures.scores), f"{side.request.data}, {name}, {figures.rows} rows"
        values = []
        for each in (each.sets[name] for each in sides):
            errors = {
                key: f" ± {number(error, 2)}"
                for key, error in each.errors.items()
                if error is not None
            }
            values.append([number(each.scores.get(key)) + errors.get(key, "") for key in keys])
        columns = [
            Column(head, cells, True)
            for head, cells in zip(("value", "against"), values, strict=False)
        ]
        yield from format_table([Column(title, keys, True, True), *columns], 100)
        if found := comparison.get(name):
            intervals = found["win_rate_interval"], found["difference_interval"]
            rate, more = (f"[{number(low, 3)}, {number(high, 3)}]" for low, high in intervals)
            counts = f"{found['wins']} wins, {found['ties']} ties, {found['losses']} losses"
            yield f"win rate  {number(found['win_rate'], 3)} {rate}: {counts}; both draw by the same random numbers"
            yield f"reward    {number(found['difference'], 3)} more {more}"
            if found["prompts"] < FEW:
                yield f"note      {found['prompts']} prompts: intervals from fewer than {FEW} can be too narrow"
    yield from (f"note      {note}" for note in side.notes)
