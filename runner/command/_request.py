"""The command line of a verb that asks a trained model (predict, evaluate) -> its options, and its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command import CommandLine, Option, split_options
from runner.config import resolve
from runner.config.experiment import Experiment
from runner.config.menu import read_menu
from runner.config.override import dotted_key, force, parse, typed_keys
from runner.errors import ConfigError, DataError, Fault
from runner.generate.held_out_rows import Rows, read_sets
from runner.generate.run_weights import Weights, find_weights
from runner.launch.compose.stages import draft
from runner.run import Run
from runner.run.inputs import read_fingerprints
from runner.run.record import check_whole, find_runs
from runner.schema import upstream
from runner.schema.source import has_method
from runner.validate import find_all_faults
from runner.validate.hub_names import settle_hub

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.completion import TextGenerator
    from runner.generate.sampler import Model

PARTS = ("model", "dataset", "quant", "metric", "reward")  # of a configuration, what is used here
SETTINGS = ("allow", "output_root")  # of its top level
BATCH_SIZE = 32
MAX_NEW_TOKENS = 64  # where neither the options nor the run say otherwise
SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")  # options


@dataclass(frozen=True)
class InferenceRequest:
    """The options of a command line with their defaults, the run, weights and configuration that they mean."""

    options: Mapping[str, Any]
    cfg: dict[str, Any]
    run: Run | None
    weights: Weights
    chosen: frozenset[str]  # the groups that were typed
    data: str  # a short name of the rows

    @cached_property
    def experiment(self) -> Experiment:
        """The configuration as an object."""
        return Experiment.read(self.cfg)

    @property
    def head(self) -> str:
        """The last layer of the model: lm or score."""
        return self.options.get("head") or str(self.cfg["trainer"].get("head", "lm"))

    @property
    def name(self) -> str:
        """The run, or the model, as one would type it."""
        return str(self.run) if self.run else str(self.cfg["model"].get("path"))

    def facts(self, parts: Sequence[str]) -> dict[str, Any]:
        """Everything on which the answers of the model depend, with these parts of the configuration."""
        facts = {name: self.cfg.get(name) for name in parts}
        facts |= {name: self.options.get(name) for name in ("limit", "set", "n")}
        functions = {key: self.cfg["trainer"].get(key) for key in upstream.FUNCTIONS}
        files = {name: self.cfg.get(name) for name in ("model", "dataset", "peft")}
        facts["files"] = read_fingerprints(files | functions)
        facts |= {"weights": [self.weights.name, self.weights.seal], "head": self.head}
        facts["tools"] = [self.cfg["trainer"].get(key) for key in upstream.FUNCTIONS]
        return facts | {"sampling": {name: self.options[name] for name in SAMPLING}}

    def read_sets(self, to: str, keep: Sequence[str] | None = None) -> dict[str, Rows]:
        """The rows of each set that is meant, in the form ``to``."""
        name, limit, falls_back = (
            self.options.get("set"),
            self.options.get("limit"),
            "dataset" in self.chosen,
        )
        try:
            return read_sets(
                self.experiment, to, name=name, limit=limit, falls_back=falls_back, keep=keep
            )
        except DataError as error:
            if "file" in self.options:  # and not the key that it stands for
                error.faults = [
                    replace(each, fix=each.fix.replace("dataset.path=", "file="))
                    for each in error.faults
                ]
            raise

    def build_generator(self, model: Model, tokenizer: PreTrainedTokenizerBase) -> TextGenerator:
        """The model as a generator of completions, with the settings of the options."""
        from runner.generate.completion import TextGenerator, context_length
        from runner.generate.sampler import Sampling
        from runner.training.components.tools import agent_of, build_functions

        how = {name: self.options[name] for name in SAMPLING if name != "seed"}
        sampling = Sampling(
            **how, rows=self.options["batch_size"], max_length=context_length(model)
        )
        agent = agent_of(self.experiment.trainer, build_functions(self.experiment.trainer))
        return TextGenerator(
            model, tokenizer, sampling, self.options["seed"], self.options.get("n", 1), agent=agent
        )

    def folder(self, name: str) -> Path:
        """The folder for what a verb writes: in the run, or without one beside the runs."""
        if self.run:
            return self.run.folder / name
        return (
            Path(self.cfg["output_root"])
            / name
            / (in_a_name(self.name.rstrip("/").rpartition("/")[2]) or "model")
        )


def read_request(
    line: CommandLine, own: Mapping[str, Option], parts: Sequence[str]
) -> InferenceRequest:
    """The request of a command line; ConfigError with every fault of it at once."""
    verb, others = line.verb, (*parts, "template", *SETTINGS)
    options, overrides, faults = split_options(line.overrides, own, verb, others)
    rivals = [word for word in overrides if dotted_key(word) in ("dataset", "dataset.path")]
    if "file" in options and rivals:
        faults.append(
            Fault("file", f"{' '.join(rivals)} together with it", "one of them", "leave file out")
        )
    elif "file" in options:
        path = str(options["file"]).replace("\\", "\\\\").replace("'", "\\'")
        overrides += ["dataset=local", f"dataset.path='{path}'"]
    typed = {dotted_key(override): override for override in overrides}
    faults += (
        [
            Fault(
                where="RUN",
                found="neither a run nor a model",
                expected="a run, or a model",
                fix=f"python -m runner {verb} outputs/<name>/<run>, or {verb} model=hub "
                "model.path=<org/name>",
            )
        ]
        if not line.runs and "model" not in typed
        else []
    )
    for key in [key for key in ("model", "template") if line.runs and key in typed]:
        word_text = typed[key]
        faults.append(
            Fault(
                where=f"{key}",
                found=f"{word_text} together with {line.runs[0]}",
                expected=f"either a run, whose model and template are known, or {word_text}",
                fix="leave it out; model.tokenizer.chat_template=<name> changes the template of a "
                "run",
            )
        )
    ConfigError.refuse(faults)
    root = Path(typed.get("output_root", "=outputs").partition("=")[2])
    (found,) = find_runs(line.runs, verb, 1, root) if line.runs else [None]
    if found:
        check_whole(found)
    run = found.run if found else None
    cfg = _compose(run, overrides, line.folders)
    used = {key: cfg.get(key) for key in (*parts, *SETTINGS, "seed")}
    if (tuner := cfg.get("peft")) and has_method(tuner.get("_target_"), "prepare_model"):
        used["peft"] = tuner  # whose code puts the weights on the model
    allowed = tuple(cfg["allow"]) if "allow" in typed else ()
    found_faults = find_all_faults(
        used, menu=read_menu(line.folders), allow=allowed, typed=typed_keys(overrides)
    )
    # which nobody needs here
    ConfigError.refuse(each for each in found_faults if each.where != "trainer")
    settle_hub([used])
    weights = find_weights(run, options.get("checkpoint"))
    tokens = upstream.completion_length(cfg["trainer"].get("args") or {}) or MAX_NEW_TOKENS
    defaults = {
        "batch_size": BATCH_SIZE,
        "max_new_tokens": int(tokens),
        "top_k": 0,
        "top_p": 1,
        "seed": 0,
    }
    defaults["temperature"] = 0 if verb == "predict" and options.get("n", 1) == 1 else 1
    options = defaults | options
    options |= {name: float(options[name]) for name in ("temperature", "top_p")}
    data = typed.get("dataset", "").partition("=")[2]
    if data in ("", "hub", "local"):  # of which the end of the path says more
        path = options.get("file") or (cfg.get("dataset") or {}).get("path") or ""
        data = str(path).rstrip("/").rpartition("/")[2].partition(".")[0]
    chosen = frozenset(key.partition(".")[0] for key in typed)
    return InferenceRequest(options, cfg, run, weights, chosen, in_a_name(data) or "rows")


def _compose(run: Run | None, overrides: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """The frozen parts of a run with the overrides laid over them; without a run, the parts that overrides make."""
    from omegaconf import OmegaConf

    frozen = run.cfg if run else {"trainer": {"head": "lm", "args": {}}}
    menu = read_menu(folders)
    chosen = (
        {key for key in map(dotted_key, overrides) if key in menu}
        if run
        else {*PARTS, "callback", "tolerate"}
    )
    heads = {override: dotted_key(override).partition(".")[0] for override in overrides}
    fresh = [
        each
        for each in overrides
        if not run or heads[each] in chosen or dotted_key(each) in SETTINGS
    ]
    cfg = {key: frozen.get(key) for key in (*PARTS, "callback", "peft", "tolerate", "trainer")}
    cfg |= {"seed": frozen.get("seed", 0), "output_root": "outputs", "allow": []}
    if fresh:
        # which keeps the rewards that a dataset brings
        composed = draft(["trainer=grpo", *fresh], folders).cfg
        brought = {"metric", "reward"} if "dataset" in chosen else set()
        cfg |= {key: composed.get(key) for key in chosen | brought | set(SETTINGS)}
        cfg["allow"] = cfg["allow"] or []
    if not (changes := [each for each in overrides if each not in fresh]):
        return cfg
    if deleted := [override for override in changes if override.startswith("~")]:
        key = dotted_key(deleted[0])
        raise ConfigError(Fault(key, deleted[0], "a value for a key of the run", f"{key}=null"))
    laid = OmegaConf.create(
        {key: cfg[key] for key in dict.fromkeys(map(heads.get, changes)) if key in cfg}
    )
    for override in parse(force(changes, {})):
        OmegaConf.update(laid, override.key_or_group, override.value(), merge=True, force_add=True)
    resolved = resolve(
        OmegaConf.create({"output_root": cfg["output_root"]} | dict(laid)), changes
    ).cfg
    return cfg | {key: resolved[key] for key in laid}


def in_a_name(text: str) -> str:
    """A text as a part of a file's name, with no letter in it that leads elsewhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
