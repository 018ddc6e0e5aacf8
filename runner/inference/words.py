"""The words of a verb that asks a trained model -> its own options, and the configuration that they change.

A run's frozen configuration says which model, which template and which rows; words lay others over it, checked like
those of a training. What the words ask of a model is not done here, and nothing heavy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import config
from runner.check import check
from runner.check.value import nearest
from runner.errors import ConfigError, Fault, FolderError
from runner.run import Run
from runner.run.find import find_runs
from runner.stage import draft

PARTS = ("model", "dataset", "quant", "metric", "reward")  # of a configuration, what is used here
SETTINGS = ("allow", "output_root")  # of its top level
LENGTHS = ("max_completion_length", "response_length", "max_new_tokens")  # what trainers call it
LENGTH = 64


@dataclass(frozen=True)
class Kind:
    """What the value of an option may be: a number from ``least`` to ``most``, one of some words, or any text."""

    of: type = str
    least: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()
    example: str = ""

    def read(self, key: str, text: str) -> Any:
        """The value that a text stands for; raises ConfigError."""
        value: Any = text.lower() if self.words else text
        try:
            value = self.of(value) if self.of is not bool else {"true": True, "false": False}[text.lower()]
        except (ValueError, KeyError):
            raise self._unfit(key, text) from None
        low, high = self.least, self.most
        if (self.words and value not in self.words) or (low is not None and not value >= low):
            raise self._unfit(key, text)
        if high is not None and not value <= high:
            raise self._unfit(key, text)
        return value

    def _unfit(self, key: str, text: str) -> ConfigError:
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        limits = [f"from {self.least:g}"] if self.least is not None else []
        limits += [f"to {self.most:g}"] if self.most is not None else []
        expected = " ".join([kinds[self.of], *limits]) if not self.words else f"one of {', '.join(self.words)}"
        return ConfigError(Fault(key, text, expected, f"{key}={self.example or (self.words or ('<value>',))[0]}"))


WHOLE = {"least": 1, "of": int}
OPTIONS = {
    "batch_size": Kind(**WHOLE, example="32"),
    "max_new_tokens": Kind(**WHOLE, example="64"),
    "temperature": Kind(float, least=0, example="1"),
    "top_k": Kind(int, least=0, example="50"),
    "top_p": Kind(float, least=1e-6, most=1, example="0.9"),
    "n": Kind(**WHOLE, example="4"),
    "seed": Kind(int, least=0, example="0"),
    "limit": Kind(**WHOLE, example="100"),
    "checkpoint": Kind(example="last"),
    "file": Kind(example="rows.jsonl"),
    "set": Kind(example="eval"),
    "to": Kind(example="predictions.jsonl"),
    "as": Kind(words=("chat", "text")),
    "head": Kind(words=("lm", "score")),
}


@dataclass(frozen=True)
class Asked:
    """What a command line asks: its options, of which run, and with which parts.

    ``chosen`` are the groups that words chose or changed; ``data`` is a short name of the rows.
    """

    options: Mapping[str, Any]
    cfg: dict[str, Any]
    run: Run | None
    chosen: frozenset[str]
    data: str

    @property
    def head(self) -> str:
        """lm or score: what the model ends with."""
        return self.options.get("head") or str(self.cfg["trainer"].get("head", "lm"))

    @property
    def name(self) -> str:
        """The run, or the model, as one would type it."""
        return str(self.run) if self.run else str(self.cfg["model"].get("path"))

    @property
    def length(self) -> int:
        """Most tokens of a completion: as told, or as the run trained with."""
        args = self.cfg["trainer"].get("args") or {}
        trained = next(filter(None, map(args.get, LENGTHS)), LENGTH)
        return int(self.options.get("max_new_tokens", trained))

    def folder(self, room: str) -> Path:
        """Where the papers of this verb are kept: in the run, or without one beside the runs."""
        if self.run:
            return self.run.folder / room
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name.rstrip("/").rpartition("/")[2]) or "model"
        return Path(str(self.cfg["output_root"])) / room / stem


def read_asked(line: Any, verb: str, own: Mapping[str, Kind], parts: Sequence[str]) -> Asked:
    """What is asked, or every fault of it at once."""
    if line.multirun:
        raise ConfigError(Fault("command line", "-m", f"one thing to {verb}", f"one value of each key, {verb} again"))
    options, words, faults = _sorted(line.overrides, verb, own, parts)
    words += _of_file(options)
    if not line.runs and not any(_key(word) == "model" for word in words):
        cure = f"python -m runner {verb} outputs/<name>/<run>, or {verb} model=hub model.path=<org/name>"
        faults.append(Fault("RUN", "none, and no model", "a run, or a model", cure))
    if line.runs and (strange := [word for word in words if _key(word) in ("model", "template")]):
        expected = f"either a run, whose model and template are known, or {strange[0]}"
        cure = "leave it out; model.tokenizer.chat_template=<name> changes the template of a run"
        faults.append(Fault(_key(strange[0]), f"{strange[0]} beside {line.runs[0]}", expected, cure))
    if faults:
        raise ConfigError(faults)
    root = Path(next((word.partition("=")[2] for word in words if word.startswith("output_root=")), "outputs"))
    run = _read_run(line.runs, verb, root) if line.runs else None
    cfg = _merged(run, words, line.folders) if run else _fresh(words, line.folders)
    chosen = {re.split(r"[.=]", word.lstrip("+~"))[0] for word in words}
    _check(cfg, words, parts, line.folders)
    return Asked(options, cfg, run, frozenset(chosen), _name_of_data(options, words, cfg))


def _sorted(
    overrides: Sequence[str], verb: str, own: Mapping[str, Kind], parts: Sequence[str]
) -> tuple[dict[str, Any], list[str], list[Fault]]:
    """The verb's own options, the words of a configuration, and the faults of both."""
    options, words, faults = {}, [], []
    groups = {*parts, "template"}
    for word in overrides:
        key, _, text = word.lstrip("+").partition("=")
        if key in own:
            try:
                options[key] = own[key].read(key, _unquoted(text))
            except ConfigError as error:
                faults += error.faults
        elif _key(word).partition(".")[0] in groups or key in SETTINGS:
            words.append(word)
        else:
            known = [*own, *groups, *SETTINGS]
            near = nearest(key, known)
            cure = f"{near[0]}=<value>" if near else f"python -m runner {verb} --help"
            found = "a key of a training, which is over" if key.partition(".")[0] in config.GROUPS else "no such key"
            faults.append(Fault(key, f"{verb}: {found}", ", ".join(known), cure))
    return options, words, faults


def _unquoted(text: str) -> str:
    """A value without the quotes that make Hydra read a slice of rows as text."""
    return text[1:-1] if re.fullmatch(r"'\w[\w.-]*\[[-\d:%]*\]'", text) else text


def _key(word: str) -> str:
    return re.split(r"[=@]", word.lstrip("+~"), maxsplit=1)[0]


def _of_file(options: Mapping[str, Any]) -> list[str]:
    """The words that ``file=`` is short for."""
    if "file" not in options:
        return []
    path = str(options["file"]).replace("\\", "\\\\").replace("'", "\\'")
    return ["dataset=local", f"dataset.path='{path}'"]


def _read_run(words: Sequence[str], verb: str, root: Path) -> Run:
    (record,) = find_runs(words, verb, 1, root)
    if not record.cfg:
        raise FolderError(Fault(str(record), "config.yaml is missing or torn", "the folder of a whole run"))
    return record.run


# --- The configuration ----------------------------------------------------------------------------


def _fresh(words: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """The parts that words alone make; those that a training would need besides are none."""
    # A trainer that takes rewards keeps those that a dataset brings.
    composed = draft(["trainer=grpo", *words], folders).cfg
    kept = {key: composed.get(key) for key in (*PARTS, "output_root", "tolerate")}
    return kept | {"seed": 0, "allow": composed.get("allow") or [], "trainer": {"head": "lm", "args": {}}}


def _merged(run: Run, words: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
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
    return _laid(cfg, [word for word in words if word not in fresh])


def _laid(cfg: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
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
    faults = check(used, menu=config.read_menu(folders), allow=allowed, typed=typed)
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
