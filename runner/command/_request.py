"""The words of a verb that asks a trained model (predict, evaluate) -> its options, and the configuration they change.

A run's frozen configuration says which model, which template and which rows; words lay others over it, checked like
those of a training. What the words ask of a model is not done here, and nothing heavy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import config
from runner.errors import ConfigError, Fault, FolderError
from runner.generate.rows import Rows, read_sets
from runner.launch.stages import draft
from runner.run import Run
from runner.run.find import find_runs
from runner.schema import Type, nearest
from runner.schema.upstream import completion_length
from runner.validate import find_all_faults
from runner.validate.values import COUNT, NOT_NEGATIVE, SEED, SHARE, Range, misfit_number, misfit_type

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.completion import TextGenerator
    from runner.generate.sampler import Model

PARTS = ("model", "dataset", "quant", "metric", "reward")  # of a configuration, what is used here
SETTINGS = ("allow", "output_root")  # of its top level
BATCH_SIZE = 32
MAX_NEW_TOKENS = 64  # where neither words nor the run say otherwise


@dataclass(frozen=True)
class Option:
    """The values that an option of a verb takes: a kind, of numbers a range, of words all of them."""

    kind: str = "str"
    numbers: Range | None = None
    words: tuple[str, ...] = ()

    def read(self, key: str, text: str) -> Any:
        """The value that a text stands for; raises ConfigError where it is none, as for a key of a configuration."""
        from omegaconf import OmegaConf

        known = Type("choice", values=self.words) if self.words else Type(self.kind)
        value = text if self.kind == "str" else OmegaConf.from_dotlist([f"value={text}"])["value"]
        fault = misfit_number(key, value, self.numbers) if known.accepts(value) else misfit_type(key, value, known)
        if fault:
            raise ConfigError(fault)
        return value


OPTIONS = {
    "batch_size": Option("int", COUNT),
    "max_new_tokens": Option("int", COUNT),
    "temperature": Option("float", NOT_NEGATIVE),
    "top_k": Option("int", NOT_NEGATIVE),
    "top_p": Option("float", SHARE),
    "n": Option("int", COUNT),
    "seed": Option("int", SEED),
    "limit": Option("int", COUNT),
    "as": Option(words=("chat", "text")),
    "head": Option(words=("lm", "score")),
    **dict.fromkeys(("checkpoint", "file", "set", "to"), Option()),
}


@dataclass(frozen=True)
class InferenceRequest:
    """The options of a command line, the run and the configuration that they mean.

    ``chosen`` are the groups that words chose or changed; ``data`` is a short name of the rows.
    """

    options: Mapping[str, Any]
    cfg: dict[str, Any]
    run: Run | None
    chosen: frozenset[str]
    data: str

    @property
    def head(self) -> str:
        """The last layer of the model: lm or score."""
        return self.options.get("head") or str(self.cfg["trainer"].get("head", "lm"))

    @property
    def name(self) -> str:
        """The run, or the model, as one would type it."""
        return str(self.run) if self.run else str(self.cfg["model"].get("path"))

    @property
    def max_new_tokens(self) -> int:
        """The most tokens of a completion: as told, or as the run trained with."""
        trained = completion_length(self.cfg["trainer"].get("args") or {})
        return int(self.options.get("max_new_tokens", trained or MAX_NEW_TOKENS))

    def read_sets(self, to: str, keep: Sequence[str] | None = None) -> dict[str, Rows]:
        """The rows of each set that is meant, in the form ``to``."""
        options = self.options
        falls_back, limit = "dataset" in self.chosen, options.get("limit")
        return read_sets(self.cfg, to, name=options.get("set"), limit=limit, falls_back=falls_back, keep=keep)

    def sampling(self, temperature: float) -> dict[str, Any]:
        """The settings of sampling as words and the run say them; this temperature where they do not."""
        options = self.options
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": float(options.get("temperature", temperature)),
            "top_k": options.get("top_k", 0),
            "top_p": float(options.get("top_p", 1.0)),
            "seed": options.get("seed", 0),
        }

    @property
    def batch_size(self) -> int:
        """The number of rows side by side."""
        return self.options.get("batch_size", BATCH_SIZE)

    def build_generator(self, model: Model, tokenizer: PreTrainedTokenizerBase, temperature: float) -> TextGenerator:
        """The model as a generator of completions, with the settings of :meth:`sampling`."""
        from runner.generate.completion import TextGenerator, context_length
        from runner.generate.sampler import Sampling

        how = self.sampling(temperature)
        seed, count = how.pop("seed"), self.options.get("n", 1)
        sampling = Sampling(**how, rows=self.batch_size, max_length=context_length(model))
        return TextGenerator(model, tokenizer, sampling, seed, count)

    def folder(self, name: str) -> Path:
        """The folder for what a verb writes: in the run, or without one beside the runs."""
        if self.run:
            return self.run.folder / name
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name.rstrip("/").rpartition("/")[2]) or "model"
        return Path(str(self.cfg["output_root"])) / name / stem


def read_request(line: Any, verb: str, own: Mapping[str, Option], parts: Sequence[str]) -> InferenceRequest:
    """The request of a command line; raises ConfigError with every fault of it at once."""
    if line.multirun:
        raise ConfigError(Fault("command line", "-m", f"one thing to {verb}", f"one value of each key, {verb} again"))
    options, words, faults = _partition_overrides(line.overrides, verb, own, parts)
    if "file" in options:
        path = str(options["file"]).replace("\\", "\\\\").replace("'", "\\'")
        words += ["dataset=local", f"dataset.path='{path}'"]
    if not line.runs and not any(_key(word) == "model" for word in words):
        fix = f"python -m runner {verb} outputs/<name>/<run>, or {verb} model=hub model.path=<org/name>"
        faults.append(Fault("RUN", "none, and no model", "a run, or a model", fix))
    if line.runs and (strange := [word for word in words if _key(word) in ("model", "template")]):
        expected = f"either a run, whose model and template are known, or {strange[0]}"
        fix = "leave it out; model.tokenizer.chat_template=<name> changes the template of a run"
        faults.append(Fault(_key(strange[0]), f"{strange[0]} beside {line.runs[0]}", expected, fix))
    if faults:
        raise ConfigError(faults)
    root = Path(next((word.partition("=")[2] for word in words if word.startswith("output_root=")), "outputs"))
    (found,) = find_runs(line.runs, verb, 1, root) if line.runs else [None]
    if found and not found.cfg:
        raise FolderError(Fault(str(found), "config.yaml is missing or torn", "the folder of a whole run"))
    run = found.run if found else None
    cfg = _merge_into_run(run, words, line.folders) if run else _compose_parts(words, line.folders)
    chosen = {re.split(r"[.=]", word.lstrip("+~"))[0] for word in words}
    _check(cfg, words, parts, line.folders)
    return InferenceRequest(options, cfg, run, frozenset(chosen), _name_of_data(options, words, cfg))


def _partition_overrides(
    overrides: Sequence[str], verb: str, own: Mapping[str, Option], parts: Sequence[str]
) -> tuple[dict[str, Any], list[str], list[Fault]]:
    """The verb's own options, the words of a configuration, and the faults of both."""
    options, words, faults = {}, [], []
    groups = {*parts, "template"}
    for word in overrides:
        key, _, text = word.lstrip("+").partition("=")
        if key in own:
            if re.fullmatch(r"'\w[\w.-]*\[[-\d:%]*\]'", text):  # quotes that make Hydra read a slice of rows as text
                text = text[1:-1]
            try:
                options[key] = own[key].read(key, text)
            except ConfigError as error:
                faults += error.faults
        elif _key(word).partition(".")[0] in groups or key in SETTINGS:
            words.append(word)
        else:
            known = [*own, *groups, *SETTINGS]
            near = nearest(key, known)
            fix = f"{near[0]}=<value>" if near else f"python -m runner {verb} --help"
            found = "a key of a training, which is over" if key.partition(".")[0] in config.GROUPS else "no such key"
            faults.append(Fault(key, f"{verb}: {found}", ", ".join(known), fix))
    return options, words, faults


def _key(word: str) -> str:
    return re.split(r"[=@]", word.lstrip("+~"), maxsplit=1)[0]


# --- The configuration ----------------------------------------------------------------------------


def _compose_parts(words: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """The parts that words alone make; those that a training would need besides are none."""
    # A trainer that takes rewards keeps those that a dataset brings.
    composed = draft(["trainer=grpo", *words], folders).cfg
    kept = {key: composed.get(key) for key in (*PARTS, "output_root", "tolerate")}
    return kept | {"seed": 0, "allow": composed.get("allow") or [], "trainer": {"head": "lm", "args": {}}}


def _merge_into_run(run: Run, words: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """A run's frozen parts with the words laid over them; a group that is chosen anew comes whole from the menu.

    A dataset brings the metrics and rewards that fit it, unless words choose others.
    """
    frozen = run.cfg
    menu = config.read_menu(folders)
    choices = {_key(word) for word in words if _key(word) in menu}
    head = {"seed": frozen.get("seed", 0), "output_root": "outputs", "allow": []}
    cfg = {key: frozen.get(key) for key in (*PARTS, "tolerate")} | head | {"trainer": frozen["trainer"]}
    fresh = [word for word in words if _key(word).partition(".")[0] in choices or _key(word) in SETTINGS]
    if choices or any(_key(word) in SETTINGS for word in words):
        composed = draft(["trainer=grpo", *fresh], folders).cfg
        brought = {"metric", "reward"} if "dataset" in choices else set()
        cfg |= {key: composed.get(key) for key in choices | brought | set(SETTINGS)}
        cfg["allow"] = cfg["allow"] or []
    return _override_values(cfg, [word for word in words if word not in fresh])


def _override_values(cfg: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The configuration with single values changed."""
    from omegaconf import OmegaConf

    if not words:
        return cfg
    if deleted := [word for word in words if word.startswith("~")]:
        key = _key(deleted[0])
        raise ConfigError(Fault(key, deleted[0], "a value for a key of the run", f"{key}=null"))
    laid = OmegaConf.create({key: cfg[key] for key in {_key(word).partition(".")[0] for word in words} if key in cfg})
    for override in config.parse(config.force(words, {})):
        OmegaConf.update(laid, override.key_or_group, override.value(), merge=True, force_add=True)
    changed = config.resolve(OmegaConf.create({"output_root": cfg["output_root"]} | dict(laid)), list(words)).cfg
    return cfg | {key: changed[key] for key in laid}


def _check(cfg: Mapping[str, Any], words: Sequence[str], parts: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise ConfigError with everything that is wrong with the parts that are used, as before a training."""
    used = {key: cfg.get(key) for key in (*parts, *SETTINGS, "seed")}
    typed = {_key(word) for word in words}
    allowed = tuple(cfg["allow"]) if "allow" in typed else ()
    faults = find_all_faults(used, menu=config.read_menu(folders), allow=allowed, typed=typed)
    # A trainer is what nobody needs here.
    if faults := [fault for fault in faults if fault.where != "trainer"]:
        raise ConfigError(faults)


def _name_of_data(options: Mapping[str, Any], words: Sequence[str], cfg: Mapping[str, Any]) -> str:
    """A short name for the rows: the file, the option that was chosen, or the end of the path."""
    option = next((word.partition("=")[2] for word in words if _key(word) == "dataset"), "")
    path = str((cfg.get("dataset") or {}).get("path") or "")
    name = Path(options["file"]).name.partition(".")[0] if "file" in options else option
    if name in ("", "hub", "local"):
        name = path.rstrip("/").rpartition("/")[2].partition(".")[0]
    return in_a_name(name) or "rows"


def in_a_name(text: str) -> str:
    """A text as a part of a file's name, with no letter in it that leads elsewhere.

    >>> in_a_name("../easy rows")
    'easy-rows'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
