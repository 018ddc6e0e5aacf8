"""A request to a trained model: its weights, its configuration, the rows, and how it is asked."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runner.command._ask_options import AskOptions, ModelOptions
from runner.config.experiment import Experiment
from runner.config.run_name import ascii_spelt
from runner.errors import DataError
from runner.generate.held_out_rows import Rows, read_sets
from runner.run import Run
from runner.run.inputs import read_fingerprints
from runner.run.weights import Weights
from runner.schema import upstream
from runner.schema.text import Config, Node

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.agent import Agent
    from runner.generate.completion import TextGenerator
    from runner.generate.sampler import Model, Sampling

Meant = TypeVar("Meant", bound=ModelOptions)
Options = TypeVar("Options", bound=AskOptions)
# Options on which the numbers of the sampling depend.
SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
ROWS_FOR_VLLM = 256  # vLLM finds out how many fit side by side; this many are written together
MAX_NEW_TOKENS = 64  # where neither the options nor the run say otherwise


@dataclass(frozen=True)
class ModelRequest(Generic[Meant]):
    """The options of a command line with their defaults, and the model that they mean."""

    options: Meant
    cfg: dict[str, Any]
    run: Run | None
    weights: Weights
    chosen: frozenset[str]  # the groups that were typed

    @cached_property
    def experiment(self) -> Experiment:
        """The configuration as an object."""
        return Experiment.read(self.cfg)

    @property
    def head(self) -> str:
        """The last layer of the model: lm or score."""
        return str(self.experiment.trainer.head or "lm")

    @property
    def name(self) -> str:
        """The run, or the model, as one would type it."""
        return str(self.run) if self.run else str(self.experiment.model.path)

    def build_sampling(self, model: Model, rows: int = 1) -> Sampling:
        """The distribution of the options, for so many rows side by side."""
        from runner.generate.completion import context_length
        from runner.generate.sampler import Sampling

        settings = {name: getattr(self.options, name) for name in SAMPLING if name != "seed"}
        return Sampling(
            **settings,
            rows=rows,
            max_length=context_length(model),
            shares_prefill=True,
        )

    def build_agent(self, *, has_rows: bool = True) -> Agent | None:
        """The tools and environments of the run; None where it has none.

        An environment of the experiment begins with one of its rows, if the request ``has_rows``.
        """
        from runner.training.components.tools import agent_of, build_functions

        trainer = self.experiment.trainer
        environment = self.experiment.environment if has_rows else None
        return agent_of(trainer, build_functions(trainer, environment))

    def folder(self, name: str) -> Path:
        """The folder of this name for what is written: in the run, or beside the runs."""
        if self.run:
            return self.run.folder / name
        model = self.name.rstrip("/").rpartition("/")[2]
        return self.experiment.root / name / (to_file_name(model) or "model")


@dataclass(frozen=True)
class InferenceRequest(ModelRequest[Options]):
    """The request to answer rows, too."""

    data: str  # a short name of the rows

    @property
    def head(self) -> str:
        """The last layer of the model: lm or score."""
        return self.options.head or super().head

    @property
    def samples(self) -> int:
        """The number of completions for each prompt."""
        return self.options.n or 1

    def facts(self, parts: Sequence[str]) -> dict[str, Any]:
        """Everything on which the answers depend, with these parts of the configuration."""
        options = self.options
        trainer = self.experiment.trainer
        functions = functions_of(trainer.node)
        files = {name: self.cfg.get(name) for name in ("model", "dataset", "peft")}
        facts = {name: self.cfg.get(name) for name in parts}
        if facts.get("environment") is None:  # so were all, before there were environments
            facts.pop("environment", None)
        facts["limit"] = options.limit
        facts["set"] = options.set
        facts["n"] = options.n
        facts["files"] = read_fingerprints(files | functions)
        facts["weights"] = [self.weights.name, self.weights.seal]
        facts["head"] = self.head
        facts["tools"] = list(functions.values())
        sampling = {name: getattr(options, name) for name in SAMPLING}
        if options.engine == "vllm":  # the others give the same completions
            sampling["engine"] = "vllm"
        facts["sampling"] = sampling
        return facts

    def read_sets(self, to: str, keep: Sequence[str] | None = None) -> dict[str, Rows]:
        """The rows of each set that is meant, in the form ``to``."""
        options = self.options
        is_typed = "dataset" in self.chosen
        try:
            return read_sets(
                self.experiment,
                to,
                name=options.set,
                limit=options.limit,
                falls_back=is_typed,
                keep=keep,
            )
        except DataError as error:
            if options.file is not None:  # which was typed in the place of dataset.path
                error.faults = [
                    replace(fault, fix=fault.fix.replace("dataset.path=", "file="))
                    for fault in error.faults
                ]
            raise

    def build_generator(self, model: Model, tokenizer: PreTrainedTokenizerBase) -> TextGenerator:
        """The model as a generator of completions, with the settings of the options."""
        from runner.generate.completion import TextGenerator
        from runner.generate.sampler import Sampler, sample

        options = self.options
        sampler: Sampler = functools.partial(sample, model, engine=options.engine, halves=True)
        rows = options.batch_size
        if options.engine == "vllm":
            from runner.generate.vllm_engine import start_engine

            sampler = start_engine(model).sample
            rows = max(rows, ROWS_FOR_VLLM)
        return TextGenerator(
            model,
            tokenizer,
            self.build_sampling(model, rows),
            options.seed,
            self.samples,
            agent=self.build_agent(has_rows=getattr(self.options, "prompt", None) is None),
            sampler=sampler,
        )


def with_defaults(options: Options, cfg: Config, *, is_greedy: bool) -> Options:
    """The options with the defaults that depend on the run and the verb.

    ``is_greedy`` is true for a verb whose single completion is the likeliest one.
    """
    temperature = options.temperature
    if temperature is None:
        temperature = 0 if is_greedy and options.n in (None, 1) else 1
    tokens = options.max_new_tokens
    if tokens is None:
        args = Experiment.read(cfg).trainer.node.get("args") or {}
        tokens = int(upstream.completion_length(args) or MAX_NEW_TOKENS)
    return replace(
        options,
        max_new_tokens=tokens,
        temperature=float(temperature),
        top_p=float(options.top_p),
    )


def functions_of(trainer: Node) -> dict[str, Any]:
    """The user's functions that the node of a trainer names, each None where it names none."""
    return {key: trainer.get(key) for key in upstream.FUNCTIONS}


def to_file_name(text: str) -> str:
    """A text as a part of a file's name, with no letter in it that leads elsewhere."""
    return ascii_spelt(text).strip("-.")
