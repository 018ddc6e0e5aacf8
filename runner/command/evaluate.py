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
from typing import Any

from runner.dataset.convert import fits
from runner.errors import ConfigError, DataError, Fault
from runner.files import display_path, write_json, write_text
from runner.held_out import find_metric_faults
from runner.inference.paper import key_of, state_of, to_line
from runner.inference.rows import find_form_fault, read_sets
from runner.inference.weights import Weights, find_weights, load
from runner.inference.words import OPTIONS, Asked, Kind, read_asked
from runner.report.number import number
from runner.report.table import Column, format_table
from runner.terminal import progress_bar, quiet
from runner.tray.judge import build_metrics, named

OWN = OPTIONS | {
    "against": Kind(example="outputs/<name>/<run>"),
    "evaluate": Kind(words=("lm_eval",)),
    "tasks": Kind(example="hellaswag,arc_easy"),
    "num_fewshot": Kind(int, least=0, example="5"),
    "include": Kind(example="tasks/"),
    "trust_remote_code": Kind(bool, example="true"),
}
PARTS = ("model", "dataset", "quant", "metric", "reward")
OF_THE_HARNESS = ("tasks", "num_fewshot", "include", "trust_remote_code")
# What is measured of known answers beside the configured metrics.
READ = {
    "lm": {
        "loss": {"_target_": "runner.metric.likelihood.loss", "better": "lower"},
        "perplexity": {"_target_": "runner.metric.likelihood.perplexity", "better": "lower"},
    },
    "score": {"accuracy": {"_target_": "runner.metric.binary.pairs"}},
}


@dataclass(frozen=True)
class Side:
    """A model that is evaluated: what was asked of it, and its weights."""

    asked: Asked
    weights: Weights

    @property
    def name(self) -> str:
        return f"{self.asked.name} ({self.weights.name})"


@dataclass
class Result:
    """What came out for one model, by set; ``notes`` tell what was not measured, and why."""

    sets: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def main(line: Any) -> int:
    """Evaluate what the command line asks, print a table, and return 0 when the figures are written."""
    asked = read_asked(line, "evaluate", OWN, PARTS)
    side = Side(asked, find_weights(asked.run, asked.options.get("checkpoint")))
    if asked.options.get("evaluate"):
        return evaluate_tasks(side)
    asked, notes = _fitting(asked)
    side = Side(asked, side.weights)
    _check(asked)
    other = _other(line, asked)
    print(f"model     {side.name}" + (f"\nagainst   {other.name}" if other else ""), flush=True)
    began = time.monotonic()
    result = measure(side, notes)
    theirs = measure(other) if other else None
    comparison = _compare(result, theirs, asked.options.get("seed", 0)) if theirs else {}
    facts = facts_of(side, other)
    path = Path(asked.options.get("to") or asked.folder("evaluations") / f"{asked.data}-{key_of(facts)}.json")
    _write(path, side, result, other, theirs, comparison, facts, time.monotonic() - began)
    print("\n".join(to_table(asked, result, theirs, comparison)))
    print(f"to        {display_path(path)}")
    return 0


# --- What is asked --------------------------------------------------------------------------------


def _fitting(asked: Asked) -> tuple[Asked, list[str]]:
    """What is asked without the metrics that nobody typed and this model or these rows cannot answer; and those."""
    kept, notes, faults = {}, [], []
    for name, node in named(asked.cfg.get("metric") or {}, "metric").items():
        found = list(find_metric_faults(_for_check(asked, {name: node})))
        if found and "metric" in asked.chosen:
            faults += found
        elif found:
            notes.append(f"{name} is left out: {found[0].found}")
        else:
            kept[name] = node
    if faults:
        raise ConfigError(faults)
    cfg = asked.cfg | {"metric": READ[asked.head] | kept}
    if "reward" not in asked.chosen and (asked.head == "score" or find_form_fault(asked, "prompt", "reward")):
        cfg["reward"] = None
    return dataclasses.replace(asked, cfg=cfg), notes


def _for_check(asked: Asked, metric: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as a training with this metric alone would have it, rows held out."""
    rows = dict(asked.cfg["dataset"])
    if "split" in rows and not (rows["split"] or {}).get("eval"):
        rows["split"] = {"eval": "train"}
    return {"trainer": {"head": asked.head}, "dataset": rows, "metric": metric}


def _check(asked: Asked) -> None:
    """Raise ConfigError for words that do not go together."""
    options, faults = asked.options, []
    for key in OF_THE_HARNESS:
        if key in options:
            faults.append(Fault(key, "set, without lm-evaluation-harness", "evaluate=lm_eval", "evaluate=lm_eval"))
    if asked.head == "score" and asked.cfg.get("reward"):
        found = "set, and a reward model writes nothing that could earn one"
        faults.append(Fault("reward", found, "none", "reward=none"))
    elif asked.cfg.get("reward") and (fault := find_form_fault(asked, "prompt", "reward")):
        faults.append(fault)
    if "against" in options and not asked.cfg.get("reward"):
        found = "no reward that could tell which answer is better"
        faults.append(Fault("against", found, "a reward", "reward=<one of conf/reward>"))
    if faults:
        raise ConfigError(faults)


def _other(line: Any, asked: Asked) -> Side | None:
    """The model to compare with: another run, on the same rows, with the same metrics and rewards."""
    wish = asked.options.get("against")
    if wish is None:
        return None
    if wish == "start":
        return Side(asked, Weights("start"))
    words = [word for word in line.overrides if word.startswith("output_root=")]
    theirs = read_asked(dataclasses.replace(line, runs=[wish], overrides=words), "evaluate", OWN, PARTS)
    if theirs.head != asked.head:
        raise ConfigError(Fault("against", f"{wish} is a {theirs.head} model", f"an {asked.head} model"))
    shared = {name: asked.cfg.get(name) for name in ("dataset", "metric", "reward", "allow", "seed", "tolerate")}
    options = {name: value for name, value in asked.options.items() if name != "checkpoint"}
    options.setdefault("max_new_tokens", asked.length)
    both = Asked(options, theirs.cfg | shared, theirs.run, asked.chosen, asked.data)
    return Side(both, find_weights(theirs.run, None))


def facts_of(side: Side, other: Side | None) -> dict[str, Any]:
    """Everything on which the figures depend."""
    asked = side.asked
    parts = {name: asked.cfg.get(name) for name in PARTS}
    own = {name: asked.options.get(name) for name in ("limit", "set", "n", "temperature", "top_k", "top_p", "seed")}
    files = {name: state_of(asked.cfg[name]) for name in ("model", "dataset")}
    weights = [[one.name, one.weights.name, one.weights.seal] for one in (side, other) if one]
    return parts | own | {"max_new_tokens": asked.length, "weights": weights, "files": files, "head": asked.head}


# --- What comes out -------------------------------------------------------------------------------


def measure(side: Side, notes: Sequence[str] = ()) -> Result:
    """Load a model once and measure every set; the model is let go of again, because another may follow."""
    result = Result(notes=list(notes))
    with quiet():
        model, tokenizer = load(side.asked.cfg, side.weights, side.asked.head)
        work = Work(side.asked, model, tokenizer)
        work.of_answers(result)
        work.of_completions(result)
    if not any(figures.scores for figures in result.sets.values()):
        raise DataError(Fault("dataset", f"nothing to measure: {'; '.join(result.notes)}", "prompts or known answers"))
    del model, work
    gc.collect()
    return result


class Work:
    """A loaded model and what is asked of it; adds figures to a result, set by set."""

    def __init__(self, asked: Asked, model: Any, tokenizer: Any):
        from runner.inference.answer import BATCH, Answers, build_panel
        from runner.model.sample import Sampling

        options = asked.options
        how = {name: options[name] for name in ("top_k", "top_p", "seed") if name in options}
        how |= {"max_new_tokens": asked.length, "temperature": options.get("temperature", 1.0)}
        size = options.get("batch_size", BATCH)
        self.asked = asked
        self.answers = Answers(model, tokenizer, Sampling(**how), size, options.get("n", 1))
        self.metrics = [
            _limited(metric, asked.cfg["metric"]) for metric in build_metrics(asked.cfg["metric"], tokenizer)
        ]
        random_head = bool((asked.cfg.get("tolerate") or {}).get("random_head"))
        self.rewards = build_panel(asked.cfg.get("reward"), tokenizer, random_head=random_head)

    def of_answers(self, result: Result) -> None:
        """Add what the model gives to known answers, where the rows have some."""
        from runner.inference.answer import read

        metrics, asked = [metric for metric in self.metrics if metric.kind == "read"], self.asked
        own = [metric for metric in metrics if metric.name not in READ[asked.head]]
        fits_at_all = fits(asked.cfg["dataset"].get("form"), "preference" if asked.head == "score" else "answer")
        try:
            kept = metrics if fits_at_all else own
            sets = read_sets(asked, "answer", ["*"]) if kept else {}
        except DataError as error:
            if own or asked.head == "score":
                raise
            kept, sets = [], {}
            result.notes.append(f"no known answers to read: {error.faults[0].found}")
        for name, rows in sets.items():
            known = [metric for metric in kept if metric.measures("" if name in ("eval", "train") else name)]
            everything = asked.head == "score" or any(metric.answers == "all" for metric in known)
            with self._bar(f"{name}: known answers", sum(everything or row["label"] for row in rows)):
                self._add(result, name, read(self.answers, rows, known, asked.head == "score"))

    def of_completions(self, result: Result) -> None:
        """Add what metrics and rewards say of completions, where there are such and the rows have prompts."""
        from runner.inference.answer import judge
        from runner.model.chat import check_template

        metrics = [metric for metric in self.metrics if metric.kind == "sampled"]
        if not metrics and self.rewards is None:
            return
        for name, rows in read_sets(self.asked, "prompt").items():
            check_template(self.answers.tokenizer, chats=isinstance(rows[0]["prompt"], list))
            known = [metric for metric in metrics if metric.measures("" if name in ("eval", "train") else name)]
            with self._bar(f"{name}: completions", len(rows) * self.answers.n):
                self._add(result, name, judge(self.answers, rows, known, self.rewards))

    def _bar(self, what: str, count: int) -> Any:
        bar = progress_bar(what, count, "answer")
        self.answers.bar = bar.update
        return bar

    def _add(self, result: Result, name: str, figures: Any) -> None:
        if name not in result.sets:
            result.sets[name] = figures
            return
        held = result.sets[name]
        held.scores |= figures.scores
        held.errors |= figures.errors
        held.completions, held.earned, held.rows = figures.completions, figures.earned, figures.rows


def _limited(metric: Any, node: Mapping[str, Any]) -> Any:
    """A metric that looks at every row, unless its own configuration says otherwise."""
    entry = named(node, "metric")[metric.name]
    return metric if "limit" in entry else dataclasses.replace(metric, limit=None)


def _compare(ours: Result, theirs: Result, seed: int) -> dict[str, Any]:
    """Which of two models earned more, by set."""
    from runner.metric.paired import compare

    return {
        name: compare(figures.earned, theirs.sets[name].earned, seed)
        for name, figures in ours.sets.items()
        if figures.earned
    }


def _write(
    path: Path,
    side: Side,
    result: Result,
    other: Side | None,
    theirs: Result | None,
    comparison: Mapping[str, Any],
    facts: Mapping[str, Any],
    seconds: float,
) -> None:
    """Write the figures, and every completion beside them."""
    both = [(side, result), *([(other, theirs)] if other and theirs else [])]
    lines = [
        {"model": one.name, "set": name, **row}
        for one, found in both
        for name, figures in found.sets.items()
        for row in figures.completions
    ]
    if lines:
        write_text(path.with_suffix(".jsonl"), "".join(map(to_line, lines)))
    papers = [
        {"model": one.name, "rows": {name: figures.rows for name, figures in found.sets.items()}, **_figures(found)}
        for one, found in both
    ]
    paper = papers[0] | {"notes": result.notes, "seconds": round(seconds, 2), "asked": facts}
    write_json(path, paper | ({"against": papers[1], "comparison": dict(comparison)} if len(papers) > 1 else {}))


def _figures(result: Result) -> dict[str, Any]:
    """The numbers of all sets under one name each, as a training logs them: eval_loss, or eval_<set>_loss."""
    found: dict[str, Any] = {"scores": {}, "errors": {}}
    for name, figures in result.sets.items():
        prefix = name if name in ("eval", "train") else f"eval_{name}"
        found["scores"] |= {f"{prefix}_{key}": value for key, value in figures.scores.items()}
        found["errors"] |= {f"{prefix}_{key}": value for key, value in figures.errors.items()}
    return found


def to_table(asked: Asked, result: Result, theirs: Result | None, comparison: Mapping[str, Any]) -> Iterator[str]:
    """The figures for the terminal, a table for each set."""
    for name, figures in result.sets.items():
        other = theirs.sets[name] if theirs else None
        names = list(figures.scores)
        columns = [
            Column(f"{asked.data}, {name}, {figures.rows} rows", names, True, True),
            Column("value", [_number(figures.scores, figures.errors, key) for key in names], True),
            *([Column("against", [_number(other.scores, other.errors, key) for key in names], True)] if other else []),
        ]
        yield from format_table(columns, 100)
        if name in comparison:
            yield from _verdict(comparison[name])
    yield from (f"note      {note}" for note in result.notes)


def _number(scores: Mapping[str, float], errors: Mapping[str, float], key: str) -> str:
    value = number(scores.get(key))
    return f"{value} ± {number(errors[key], 2)}" if errors.get(key) is not None else value


def _verdict(found: Mapping[str, Any]) -> Iterator[str]:
    counts = f"{found['wins']} wins, {found['ties']} ties, {found['losses']} losses"
    yield f"win rate  {number(found['win_rate'], 3)} {_between(found['win_rate_interval'])}: {counts}"
    yield f"reward    {number(found['difference'], 3)} more {_between(found['difference_interval'])}"


def _between(ends: Sequence[float]) -> str:
    return f"[{number(ends[0], 3)}, {number(ends[1], 3)}]"


# --- Other people's tasks -------------------------------------------------------------------------


def evaluate_tasks(side: Side) -> int:
    """Run tasks of lm-evaluation-harness on the model, and write their figures like our own."""
    from runner.inference.harness import check_harness, check_tasks, run_tasks

    asked, options = side.asked, side.asked.options
    tasks = [task for task in str(options.get("tasks", "")).strip("[]").split(",") if task.strip()]
    if not tasks or asked.head == "score":
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
        model, tokenizer = load(asked.cfg, side.weights, asked.head)
        size = options.get("batch_size", 8)
        scores, errors = run_tasks(model, tokenizer, tasks, batch_size=size, include=options.get("include"), **how)
    facts = how | {"tasks": tasks, "weights": [side.name, side.weights.seal]}
    path = Path(options.get("to") or asked.folder("evaluations") / f"lm_eval-{key_of(facts)}.json")
    paper = {"model": side.name, "scores": scores, "errors": errors, "seconds": round(time.monotonic() - began, 2)}
    write_json(path, paper | {"asked": facts})
    cells = [_number(scores, errors, name) for name in scores]
    print("\n".join(format_table([Column("task", list(scores), True, True), Column("value", cells, True)], 100)))
    print(f"to        {display_path(path)}")
    return 0
