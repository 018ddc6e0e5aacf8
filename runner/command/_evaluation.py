"""The sides of an evaluation: the model that is meant, and the one that it is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.command import CommandLine
from runner.command._named_model import read_against
from runner.command._request import PARTS, read_request
from runner.command._side import READ_METRICS, Request, Side
from runner.command.evaluate_options import Options
from runner.dataset.form import fits
from runner.errors import ConfigError, Fault, check_library
from runner.generate.held_out_rows import find_prompt_fault
from runner.metric.harness import check_tasks_folder
from runner.schema.text import Node
from runner.validate.mismatches import find_metric_faults

# Keys of the configuration that both sides of a comparison share.
SHARED = ("dataset", "environment", "metric", "reward", "allow", "seed", "tolerate")


def build_sides(line: CommandLine) -> list[Side]:
    """The side of the model that the command line names, and that of ``against``, if any."""
    request = read_request(line, Options, PARTS)
    _check_tasks(request)
    notes: list[str] = []
    if not request.options.tasks:
        request, notes = _select_parts(request)
    sides = [Side(request, notes)]
    against = request.options.against
    if against is not None:
        sides.append(Side(_other_request(line, request, against)))
    return sides


def _check_tasks(request: Request) -> None:
    """Raise an error where tasks of lm-evaluation-harness cannot be run on this model, or here."""
    options = request.options
    if options.lm_eval is None:
        names = ("num_fewshot", "include_path", "apply_chat_template", "trust_remote_code")
        faults = []
        for name in names:
            if getattr(options, name):
                faults.append(
                    Fault(
                        where=name,
                        found="set, without lm_eval",
                        expected="tasks that it is for",
                        fix="lm_eval=[<task>]",
                    )
                )
        ConfigError.refuse(faults)
        return
    if not options.tasks or request.head == "score":
        raise ConfigError(
            Fault(
                where="lm_eval",
                found="no task" if not options.tasks else "a reward model, which writes nothing",
                expected="tasks for a language model",
                fix="lm_eval=[arc_easy,hellaswag]",
            )
        )
    check_tasks_folder(options)
    check_library("lm_eval", "lm_eval")


# --- What is measured -----------------------------------------------------------------------------
def _select_parts(request: Request) -> tuple[Request, list[str]]:
    """The request without metrics and rewards that do not apply, and notes on the metrics.

    What was typed has to apply: ConfigError with each that does not.
    """
    metrics = dict(READ_METRICS[request.head])
    notes = []
    faults: list[Fault] = []
    for name, node in request.experiment.group("metric").items():
        metric_faults = _check_metric(request, name, node)
        if not metric_faults:
            metrics[name] = node
        elif "metric" in request.chosen:
            faults += metric_faults
        else:
            notes.append(f"{name} is left out: {metric_faults[0].found}")
    reward = request.cfg.get("reward")
    reward_fault = _find_reward_fault(request)
    if reward_fault and "reward" not in request.chosen:
        reward = None
    if reward_fault and reward:
        faults.append(reward_fault)
    earns = reward or request.cfg.get("environment")
    if request.options.against is not None and not earns:
        has_answers = fits(request.experiment.dataset.form, "answer")
        faults.append(
            Fault(
                where="against",
                found="no reward that could tell which answer is better",
                expected="a reward",
                fix="reward=exact_match" if has_answers else "reward=chat_model",
            )
        )
    ConfigError.refuse(faults)
    return replace(request, cfg=request.cfg | {"metric": metrics, "reward": reward}), notes


def _rows_to_check(request: Request) -> dict[str, Any]:
    """The dataset as it is checked for a training, which holds rows out."""
    node = dict(request.experiment.dataset.node)
    if "split" in node and not (node["split"] or {}).get("eval"):
        node["split"] = {"eval": "train"}
    return node


def _check_metric(request: Request, name: str, node: Node) -> list[Fault]:
    """The faults of a metric, as of a training on the same rows."""
    cfg = {
        "trainer": {"head": request.head},
        "dataset": _rows_to_check(request),
        "metric": {name: node},
    }
    return list(find_metric_faults(cfg))


def _find_reward_fault(request: Request) -> Fault | None:
    """The fault of a reward that nothing could earn; else None."""
    if request.head == "score":
        return Fault(
            where="reward",
            found="set, but a reward model writes nothing that could earn one",
            expected="none",
            fix="=none",
        )
    return find_prompt_fault(_rows_to_check(request), "reward")


# --- The model that it is compared with -----------------------------------------------------------
def _other_request(line: CommandLine, request: Request, against: str) -> Request:
    """The request to the other model, with the same rows, metrics, rewards and options."""
    other = read_against(line, request, against, lambda words: read_request(words, Options, PARTS))
    if other.head != request.head:
        found = f"{against} is a {other.head} model"
        raise ConfigError(
            Fault(
                where="against",
                found=found,
                expected=f"an {request.head} model",
            )
        )
    shared = {name: request.cfg.get(name) for name in SHARED}
    return replace(other, options=request.options, cfg=other.cfg | shared, chosen=request.chosen)
