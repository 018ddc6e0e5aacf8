"""python -m runner evaluate RUN [dataset=...] [metric=...] [reward=...] [against=RUN2] [key=value ...]

Measures a trained model on held-out rows, the run's own or any others: loss and perplexity of the known answers, and
what metrics and rewards say of completions, each with its standard error where it is a mean over prompts. A reward
model is asked how often it prefers the right answer. Written to <run>/evaluations/<rows>-<key>.json, with every
completion in the .jsonl beside it; scores.json stays what the training itself measured.

    dataset=toy_sort      other rows, with the metrics and rewards that fit them; file=rows.jsonl for a file
    dataset.split.eval='{easy: "eval[:50%]", hard: "eval[50%:]"}'     several sets, each with figures of its own
    set=eval              train, eval (every held-out set), or the name of one
    limit=100             the first rows of each set only
    metric=overlap        any option of the metric group, or metric.<name>._target_=...; metric=none
    reward=sorted_digits  any option of the reward group, a rule or a model: reward=model reward.model.path=<folder>
    against=RUN2          the same prompts answered by both, compared by the reward: wins, ties and losses, the win
                          rate and the mean difference with 95 % intervals by a paired bootstrap of 10,000 resamples;
                          against=start is the model that the training began with
    checkpoint=last       model, best, last, a step, or start; the default as for predict
    batch_size=32 max_new_tokens=64 temperature=1 top_k=0 top_p=1 n=1 seed=0      as for predict; the temperature is 1
                          unless it is typed, as in the evaluations of a training
    to=file.json          another place
    output_root=outputs   where names and keys of runs are looked up

With lm-evaluation-harness (pip install "runner[eval]"):

    evaluate=lm_eval tasks=hellaswag,arc_easy [num_fewshot=5] [limit=100] [include=<folder of tasks>] [as=chat]
    trust_remote_code=true   if the tasks of that folder name Python functions, which then run

Without a RUN, any model: evaluate model=hub model.path=org/name dataset=..., with head=score for a reward model.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command._request import OPTIONS, InferenceRequest, Option, read_request
from runner.dataset.convert import fits
from runner.errors import ConfigError, DataError, Fault
from runner.generate.prediction import file_states, prediction_key, to_line
from runner.generate.rows import find_form_fault
from runner.generate.weights import Weights, find_weights
from runner.io.files import display_path, write_json, write_text
from runner.io.terminal import progress_bar, quiet
from runner.report.number import number
from runner.report.table import Column, format_table
from runner.schema.text import named
from runner.training.build.rewards import build_metrics, build_rewards
from runner.training.trained import load_trained
from runner.validate.parts import find_metric_faults
from runner.validate.values import NOT_NEGATIVE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.completion import Completion
    from runner.generate.judge import Figures, Score
    from runner.generate.rows import Row
    from runner.generate.sampler import Model
    from runner.metric.ask import Metric

OWN = OPTIONS | {
    "against": Option(),
    "evaluate": Option(words=("lm_eval",)),
    "tasks": Option(),
    "num_fewshot": Option("int", NOT_NEGATIVE),
    "include": Option(),
    "trust_remote_code": Option("bool"),
}
PARTS = ("model", "dataset", "quant", "metric", "reward")
OF_THE_HARNESS = ("tasks", "num_fewshot", "include", "trust_remote_code")
TOKENS_PER_REWARD_PASS = 8192  # padded, that a reward model reads at once
# What is measured of known answers beside the configured metrics.
READ = {
    "lm": {
        "loss": {"_target_": "runner.metric.likelihood.loss", "better": "lower"},
        "perplexity": {"_target_": "runner.metric.likelihood.perplexity", "better": "lower"},
    },
    "score": {"accuracy": {"_target_": "runner.metric.binary.pairs"}},
}


@dataclass
class Side:
    """A model that is evaluated and its figures by set; ``notes`` tell what was not measured, and why."""

    request: InferenceRequest
    weights: Weights
    notes: list[str] = field(default_factory=list)
    sets: dict[str, Figures] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run, or the model, and which of its weights."""
        return f"{self.request.name} ({self.weights.name})"


def main(line: Any) -> int:
    """Evaluate what the command line asks, print a table, and return 0 when the figures are written."""
    request = read_request(line, "evaluate", OWN, PARTS)
    weights = find_weights(request.run, request.options.get("checkpoint"))
    if request.options.get("evaluate"):
        return evaluate_tasks(Side(request, weights))
    request, notes = _leave_out(request)
    _check(request)
    sides = [Side(request, weights, notes), *_other_side(line, request)]
    for word, side in zip(("model", "against"), sides, strict=False):
        print(f"{word:<8}  {side.name}", flush=True)
    began = time.monotonic()
    for side in sides:
        measure_side(side)
    comparison = _compare(*sides) if len(sides) > 1 else {}
    facts = _facts(sides)
    name = f"{request.data}-{prediction_key(facts)}.json"
    path = Path(request.options.get("to") or request.folder("evaluations") / name)
    _write(path, sides, comparison, facts, time.monotonic() - began)
    print("\n".join(to_table(sides, comparison)))
    print(f"to        {display_path(path)}")
    return 0


# --- What is asked --------------------------------------------------------------------------------


def _leave_out(request: InferenceRequest) -> tuple[InferenceRequest, list[str]]:
    """Drop metrics that do not apply unless the user asked for them; return them as notes."""
    kept, notes, faults = {}, [], []
    rows = dict(request.cfg["dataset"])
    if "split" in rows and not (rows["split"] or {}).get("eval"):
        rows["split"] = {"eval": "train"}  # checked as a training would be, which holds rows out
    for name, node in named(request.cfg.get("metric") or {}, "metric").items():
        as_in_training = {"trainer": {"head": request.head}, "dataset": rows, "metric": {name: node}}
        found = list(find_metric_faults(as_in_training))
        if found and "metric" in request.chosen:
            faults += found
        elif found:
            notes.append(f"{name} is left out: {found[0].found}")
        else:
            kept[name] = node
    if faults:
        raise ConfigError(faults)
    cfg = request.cfg | {"metric": READ[request.head] | kept}
    no_prompts = request.head == "score" or find_form_fault(cfg["dataset"], "prompt", "reward")
    if "reward" not in request.chosen and no_prompts:
        cfg["reward"] = None
    return dataclasses.replace(request, cfg=cfg), notes


def _check(request: InferenceRequest) -> None:
    """Raise ConfigError for words that do not go together."""
    options, reward, faults = request.options, request.cfg.get("reward"), []
    for key in OF_THE_HARNESS:
        if key in options:
            faults.append(Fault(key, "set, without lm-evaluation-harness", "evaluate=lm_eval", "evaluate=lm_eval"))
    if request.head == "score" and reward:
        found = "set, and a reward model writes nothing that could earn one"
        faults.append(Fault("reward", found, "none", "reward=none"))
    elif reward and (fault := find_form_fault(request.cfg["dataset"], "prompt", "reward")):
        faults.append(fault)
    if "against" in options and not reward:
        found = "no reward that could tell which answer is better"
        faults.append(Fault("against", found, "a reward", "reward=<one of conf/reward>"))
    if faults:
        raise ConfigError(faults)


def _other_side(line: Any, request: InferenceRequest) -> list[Side]:
    """The model to compare with, if any: another run, on the same rows, with the same metrics and rewards."""
    wish = request.options.get("against")
    if wish is None:
        return []
    if wish == "start":
        return [Side(request, Weights("start"))]
    words = [word for word in line.overrides if word.startswith("output_root=")]
    theirs = read_request(dataclasses.replace(line, runs=[wish], overrides=words), "evaluate", OWN, PARTS)
    if theirs.head != request.head:
        raise ConfigError(Fault("against", f"{wish} is a {theirs.head} model", f"an {request.head} model"))
    shared = {name: request.cfg.get(name) for name in ("dataset", "metric", "reward", "allow", "seed", "tolerate")}
    options = {name: value for name, value in request.options.items() if name != "checkpoint"}
    options.setdefault("max_new_tokens", request.max_new_tokens)
    both = dataclasses.replace(request, options=options, cfg=theirs.cfg | shared, run=theirs.run)
    return [Side(both, find_weights(theirs.run, None))]


def _facts(sides: Sequence[Side]) -> dict[str, Any]:
    """Everything on which the figures depend."""
    request = sides[0].request
    parts = {name: request.cfg.get(name) for name in PARTS}
    own = {name: request.options.get(name) for name in ("limit", "set", "n", "temperature", "top_k", "top_p", "seed")}
    own |= {"max_new_tokens": request.max_new_tokens, "head": request.head}
    weights = [[side.name, side.weights.name, side.weights.seal] for side in sides]
    return parts | own | {"weights": weights, "files": {key: file_states(parts[key]) for key in ("model", "dataset")}}


# --- What comes out -------------------------------------------------------------------------------


def measure_side(side: Side) -> None:
    """Load a model once and measure every set; the model is let go of again, because another may follow."""
    request = side.request
    with quiet():
        model, tokenizer = load_trained(request.cfg, side.weights, request.head)
        entries = named(request.cfg["metric"], "metric")
        metrics = [
            # Every row is looked at, unless the configuration says otherwise.
            metric if "limit" in entries[metric.name] else dataclasses.replace(metric, limit=None)
            for metric in build_metrics(request.cfg["metric"], tokenizer)
        ]
        _measure_answers(side, model, tokenizer, [metric for metric in metrics if metric.kind == "read"])
        _measure_completions(side, model, tokenizer, [metric for metric in metrics if metric.kind == "sampled"])
    if not any(figures.scores for figures in side.sets.values()):
        raise DataError(Fault("dataset", f"nothing to measure: {'; '.join(side.notes)}", "prompts or known answers"))
    del model
    gc.collect()


def _measure_answers(side: Side, model: Model, tokenizer: PreTrainedTokenizerBase, metrics: Sequence[Metric]) -> None:
    """Add what metrics say of known answers, where the rows have some."""
    from runner.generate.completion import context_length
    from runner.generate.judge import judge_answers

    request, is_scorer = side.request, side.request.head == "score"
    own = [metric for metric in metrics if metric.name not in READ[request.head]]
    metrics = metrics if fits(request.cfg["dataset"].get("form"), "preference" if is_scorer else "answer") else own
    try:
        sets = request.read_sets("answer", ["*"]) if metrics else {}
    except DataError as error:
        if own or is_scorer:
            raise
        sets = {}
        side.notes.append(f"no known answers to read: {error.faults[0].found}")
    for name, rows in sets.items():
        known = _of_set(metrics, name)
        everything = is_scorer or any(metric.answers == "all" for metric in known)
        how = {"max_length": context_length(model), "batch_size": request.batch_size, "is_scorer": is_scorer}
        with progress_bar(f"{name}: known answers", sum(everything or row["label"] for row in rows), "answer") as bar:
            side.sets[name] = judge_answers(model, tokenizer, rows, known, **how, on_progress=bar.update)


def _measure_completions(
    side: Side, model: Model, tokenizer: PreTrainedTokenizerBase, metrics: Sequence[Metric]
) -> None:
    """Add what metrics and rewards say of completions, where there are such and the rows have prompts."""
    from runner.generate.judge import judge_completions
    from runner.model.chat import check_template

    score = _build_score(side.request, tokenizer) if side.request.cfg.get("reward") else None
    if not metrics and score is None:
        return
    generator = side.request.build_generator(model, tokenizer, temperature=1.0)
    for name, rows in side.request.read_sets("prompt").items():
        check_template(tokenizer, chats=isinstance(rows[0]["prompt"], list))
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
    return [metric for metric in metrics if metric.measures("" if name in ("eval", "train") else name)]


def _build_score(request: InferenceRequest, tokenizer: PreTrainedTokenizerBase) -> Score:
    """The configured rewards, asked together about completions."""
    from runner.ppo.scoring import Completions, Rewards
    from runner.reward.outcome import best_device

    node = request.cfg["reward"]
    random_head = bool((request.cfg.get("tolerate") or {}).get("random_head"))
    functions, weights, _ = build_rewards(node, per_step=True, random_head=random_head)
    rewards = Rewards(functions, weights, tokenizer)
    rewards.names = list(named(node, "reward"))
    for reward in rewards.rewards:
        if hasattr(reward, "parameters"):
            reward.requires_grad_(False).to(best_device())

    def score(completions: Sequence[Completion], rows: Sequence[Row]) -> tuple[list[float], dict[str, list[float]]]:
        chats = isinstance(rows[0]["prompt"], list)
        given = Completions(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": c.text}] if chats else c.text for c in completions],
            prompt_ids=[list(each.prompt_ids) for each in completions],
            completion_ids=[each.token_ids for each in completions],
            ended=[each.finish == "stop" for each in completions],
            columns={name: [row[name] for row in rows] for name in rows[0] if name != "prompt"},
        )
        scores = rewards(given, None, TOKENS_PER_REWARD_PASS)
        return scores.total_B.tolist(), dict(zip(rewards.names, scores.each_BF.T.tolist(), strict=True))

    return score


def _compare(ours: Side, theirs: Side) -> dict[str, Any]:
    """The verdict of which of two models earned more, by set."""
    from runner.metric.paired import compare

    seed = ours.request.options.get("seed", 0)
    earned = {name: (figures.earned, theirs.sets[name].earned) for name, figures in ours.sets.items()}
    return {name: compare(*both, seed) for name, both in earned.items() if both[0]}


def _write(
    path: Path, sides: Sequence[Side], comparison: Mapping[str, Any], facts: Mapping[str, Any], seconds: float
) -> None:
    """Write the figures, and every completion beside them; numbers are named as a training logs them: eval_loss."""
    lines: list[str] = []
    found: list[dict[str, Any]] = []
    for side in sides:
        found.append({"model": side.name, "rows": {}, "scores": {}, "errors": {}})
        for name, figures in side.sets.items():
            prefix = name if name in ("eval", "train") else f"eval_{name}"
            found[-1]["rows"][name] = figures.rows
            found[-1]["scores"] |= {f"{prefix}_{key}": value for key, value in figures.scores.items()}
            found[-1]["errors"] |= {f"{prefix}_{key}": value for key, value in figures.errors.items()}
            lines += [to_line({"model": side.name, "set": name, **row}) for row in figures.completions]
    if lines:
        write_text(path.with_suffix(".jsonl"), "".join(lines))
    also = {"against": found[1], "comparison": dict(comparison)} if len(found) > 1 else {}
    write_json(path, found[0] | {"notes": sides[0].notes, "seconds": round(seconds, 2), "asked": facts} | also)


def to_table(sides: Sequence[Side], comparison: Mapping[str, Any]) -> Iterator[str]:
    """The figures for the terminal, a table for each set."""
    side = sides[0]
    for name, figures in side.sets.items():
        keys, title = list(figures.scores), f"{side.request.data}, {name}, {figures.rows} rows"
        values = [[_number(each.sets[name].scores, each.sets[name].errors, key) for key in keys] for each in sides]
        heads = ("value", "against")[: len(sides)]
        columns = [Column(head, cells, True) for head, cells in zip(heads, values, strict=True)]
        yield from format_table([Column(title, keys, True, True), *columns], 100)
        if name in comparison:
            yield from _verdict(comparison[name])
    yield from (f"note      {note}" for note in side.notes)


def _number(scores: Mapping[str, float], errors: Mapping[str, float], key: str) -> str:
    error = errors.get(key)
    value = number(scores.get(key))
    return value if error is None else f"{value} ± {number(error, 2)}"


def _verdict(found: Mapping[str, Any]) -> Iterator[str]:
    counts = f"{found['wins']} wins, {found['ties']} ties, {found['losses']} losses"
    yield f"win rate  {number(found['win_rate'], 3)} {_between(found['win_rate_interval'])}: {counts}"
    yield f"reward    {number(found['difference'], 3)} more {_between(found['difference_interval'])}"


def _between(ends: Sequence[float]) -> str:
    return f"[{number(ends[0], 3)}, {number(ends[1], 3)}]"


# --- Other people's tasks -------------------------------------------------------------------------


def evaluate_tasks(side: Side) -> int:
    """Run tasks of lm-evaluation-harness on the model, and write their figures like our own."""
    from runner.generate.harness import check_harness, check_tasks, run_tasks

    request, options = side.request, side.request.options
    tasks = [task for task in str(options.get("tasks", "")).strip("[]").split(",") if task.strip()]
    if not tasks or request.head == "score":
        found = "none" if not tasks else "a reward model, which writes nothing"
        raise ConfigError(Fault("tasks", found, "tasks for a language model", "tasks=hellaswag,arc_easy"))
    if "include" in options:
        check_tasks(Path(options["include"]), options.get("trust_remote_code", False))
    check_harness()
    print(f"model     {side.name}", flush=True)
    how = {name: options.get(name) for name in ("num_fewshot", "limit")}
    how["apply_chat_template"] = options.get("as") == "chat"
    began = time.monotonic()

    with quiet():
        model, tokenizer = load_trained(request.cfg, side.weights, request.head)
        size = options.get("batch_size", 8)
        scores, errors = run_tasks(model, tokenizer, tasks, batch_size=size, include=options.get("include"), **how)
    facts = how | {"tasks": tasks, "weights": [side.name, side.weights.seal]}
    path = Path(options.get("to") or request.folder("evaluations") / f"lm_eval-{prediction_key(facts)}.json")
    paper = {"model": side.name, "scores": scores, "errors": errors, "seconds": round(time.monotonic() - began, 2)}
    write_json(path, paper | {"asked": facts})
    cells = [_number(scores, errors, name) for name in scores]
    print("\n".join(format_table([Column("task", list(scores), True, True), Column("value", cells, True)], 100)))
    print(f"to        {display_path(path)}")
    return 0
