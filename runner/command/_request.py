"""The command line of a verb that asks a trained model (predict, evaluate) -> the request.

A verb calls :func:`read_request` with its options and the groups whose keys may be typed, loads the
weights by ``trained_model.load_trained``, and has ``request.build_generator`` answer: its
``complete_all`` takes rows whose prompt is a text or a list of turns, and ``Completion.answer`` has
the turns to append. The random numbers of a completion depend on the seed, its row and its number
alone, so that a second call with the same seed draws the same ones. A default temperature of 0 is
for ``predict`` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.command import CommandLine
from runner.command._inference import (
    InferenceRequest,
    Meant,
    ModelRequest,
    Options,
    functions_of,
    to_file_name,
    with_defaults,
)
from runner.command._option import SplitWords, options_in, split_options, to_record
from runner.config.menu import read_menu
from runner.config.override import dotted_key, force, parse, set_values, typed_keys
from runner.config.resolution import resolve
from runner.errors import ConfigError, Fault, check_library
from runner.launch.compose.references import draft
from runner.run import Run
from runner.run.record import RunRecord, check_whole, find_runs
from runner.run.weights import find_weights
from runner.schema.source import has_method
from runner.schema.text import Config
from runner.validate.configuration import find_all_faults, find_forbidden
from runner.validate.hub_names import settle_hub

# The dataset of an environment that makes its rows.
OF_ENVIRONMENT = "runner.generate.environment.rows.environment_rows"
# The parts of a configuration that are used, and the keys of its top level.
PARTS = ("model", "dataset", "environment", "quant", "metric", "reward")
SETTINGS = ("allow", "output_root")


def read_request(
    line: CommandLine, kind: type[Options], parts: Sequence[str]
) -> InferenceRequest[Options]:
    """The request of a command line; ConfigError with every fault of it at once.

    ``kind`` is the dataclass of the verb's options, and ``parts`` are the groups that it takes.
    """
    split = _split_words(line, kind, parts)
    options = to_record(kind, split.options)
    rivals = [word for word in split.overrides if dotted_key(word) in ("dataset", "dataset.path")]
    if options.file is not None and rivals:
        found = f"{' '.join(rivals)} together with it"
        split.faults.append(
            Fault(
                where="file",
                found=found,
                expected="one of them",
                fix="leave file out",
            )
        )
    elif options.file is not None:
        path = options.file.replace("\\", "\\\\").replace("'", "\\'")
        split.overrides.extend(["dataset=local", f"dataset.path='{path}'"])
    asked = _read_model(line, options, split, parts)
    options = with_defaults(options, asked.cfg, is_greedy=line.verb == "predict")
    if options.engine == "vllm":
        check_library("vllm", "engine")
    typed = _typed(split.overrides)
    word = typed.get("environment") or typed.get("dataset", "")
    name = _name_of_rows(word, options.file, asked.cfg)
    return InferenceRequest(options, asked.cfg, asked.run, asked.weights, asked.chosen, name)


def read_model_request(
    line: CommandLine, kind: type[Meant], parts: Sequence[str]
) -> ModelRequest[Meant]:
    """The request to a model without rows, as ``read_request`` reads one with them."""
    split = _split_words(line, kind, parts)
    return _read_model(line, to_record(kind, split.options), split, parts)


def _split_words(line: CommandLine, kind: type[Meant], parts: Sequence[str]) -> SplitWords:
    others = (*parts, "template", *SETTINGS)
    return split_options(line.overrides, options_in(kind), line.verb, others)


def _read_model(
    line: CommandLine,
    options: Meant,
    split: SplitWords,
    parts: Sequence[str],
) -> ModelRequest[Meant]:
    """The run or the model of a command line, with its configuration, which is checked."""
    overrides = split.overrides
    typed = _typed(overrides)
    ConfigError.refuse([*split.faults, *_find_model_faults(line, typed)])
    root = Path(typed.get("output_root", "=outputs").partition("=")[2])
    record = _find_run(line, root)
    run = record.run if record else None
    cfg = _compose(run, overrides, line.folders)
    _check_used(
        cfg,
        (*parts, *SETTINGS, "seed"),
        line.folders,
        overrides,
        is_allowed="allow" in typed,
    )
    weights = find_weights(run, options.checkpoint)
    chosen = frozenset(key.partition(".")[0] for key in typed)
    return ModelRequest(options, cfg, run, weights, chosen)


def _typed(overrides: Sequence[str]) -> dict[str, str]:
    """The words by their keys."""
    return {dotted_key(override): override for override in overrides}


def _find_model_faults(line: CommandLine, typed: Mapping[str, str]) -> list[Fault]:
    """The faults where there is neither a run nor a model, or both."""
    verb = line.verb
    if not line.runs:
        if "model" in typed:
            return []
        model = f"{verb} model=hub model.path=<org/name>"
        return [
            Fault(
                where="RUN",
                found="neither a run nor a model",
                expected="a run, or a model",
                fix=f"python -m runner {verb} outputs/<name>/<run>, or {model}",
            )
        ]
    faults = []
    for key in ("model", "template"):
        if key in typed:
            word = typed[key]
            faults.append(
                Fault(
                    where=key,
                    found=f"{word} together with {line.runs[0]}",
                    expected=f"either a run, whose model and template are known, or {word}",
                    fix="leave it out; model.tokenizer.chat_template=<name> changes the template "
                    "of a run",
                )
            )
    return faults


def _find_run(line: CommandLine, root: Path) -> RunRecord | None:
    """The run that is asked, which must be whole; None where a model is asked."""
    if not line.runs:
        return None
    (record,) = find_runs(line.runs, line.verb, 1, root)
    check_whole(record)
    return record


def _name_of_rows(word: str, file: str | None, cfg: Config) -> str:
    """A short name of the rows: the option of the dataset group, or the end of their path."""
    name = word.partition("=")[2]
    if name in ("", "hub", "local"):
        path = file or (cfg.get("dataset") or {}).get("path") or ""
        name = str(path).rstrip("/").rpartition("/")[2].partition(".")[0]
    return to_file_name(name) or "rows"


# --- The configuration ----------------------------------------------------------------------------
def _compose(run: Run | None, overrides: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """The parts of a run with the overrides laid over them; without a run, those that they make.

    An option of a group takes the place of what the run had there, and a key changes it.
    """
    frozen: Mapping[str, Any] = {"trainer": {"head": "lm", "args": {}}}
    chosen = {*PARTS, "callback", "tolerate"}
    fresh = list(overrides)  # that are composed anew
    if run:
        frozen = run.cfg
        menu = read_menu(folders)
        chosen = {key for key in map(dotted_key, overrides) if key in menu}
        fresh = [word for word in overrides if _is_fresh(word, chosen)]
    cfg = {key: frozen.get(key) for key in (*PARTS, "callback", "peft", "tolerate", "trainer")}
    cfg |= {"seed": frozen.get("seed", 0), "output_root": "outputs", "allow": []}
    if fresh:
        # This trainer keeps the rewards that a dataset brings.
        composed = draft(["trainer=grpo", *fresh], folders).cfg
        composed_keys = chosen | set(SETTINGS)
        if "environment" in chosen:
            composed_keys |= {"dataset", "metric", "reward"}
        elif "dataset" in chosen:
            composed_keys |= {"metric", "reward"}
            if (cfg["dataset"] or {}).get("_target_") == OF_ENVIRONMENT:
                composed_keys.add("environment")  # whose rows are not asked
        cfg |= {key: composed.get(key) for key in composed_keys}
        cfg["allow"] = cfg["allow"] or []
    changes = [word for word in overrides if word not in fresh]
    return _lay_over(cfg, changes) if changes else cfg


def _is_fresh(word: str, chosen: set[str]) -> bool:
    """True for a word of a group whose option was typed, or of the top level."""
    key = dotted_key(word)
    group, _, _ = key.partition(".")
    return group in chosen or key in SETTINGS


def _lay_over(cfg: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """A configuration with words that change keys of the run."""
    from omegaconf import OmegaConf

    for word in changes:
        if word.startswith("~"):
            key = dotted_key(word)
            raise ConfigError(
                Fault(
                    where=key,
                    found=word,
                    expected="a value for a key of the run",
                    fix=f"{key}=null",
                )
            )
    groups = dict.fromkeys(dotted_key(word).partition(".")[0] for word in changes)
    changed = OmegaConf.create({group: cfg[group] for group in groups if group in cfg})
    set_values(changed, parse(force(changes, {})))
    everything = OmegaConf.create({"output_root": cfg["output_root"]} | dict(changed))
    resolved = resolve(everything, changes).cfg
    return cfg | {key: resolved[key] for key in changed}


def _check_used(
    cfg: Config,
    keys: Sequence[str],
    folders: Sequence[Path],
    overrides: Sequence[str],
    *,
    is_allowed: bool,
) -> None:
    """Raise ConfigError with every fault of the parts that are used, or EnvironmentFault."""
    used = {key: cfg.get(key) for key in keys}
    tuner = cfg.get("peft")
    # Its code puts the weights on the model.
    if tuner and has_method(tuner.get("_target_"), "prepare_model"):
        used["peft"] = tuner
    allowed: Collection[str] = tuple(cfg["allow"]) if is_allowed else ()
    faults = find_all_faults(
        used, menu=read_menu(folders), allow=allowed, typed=typed_keys(overrides)
    )
    # Nobody needs a trainer here, but for its functions, which the model may call.
    absent = {"trainer", "dataset"} - set(keys)
    faults = [fault for fault in faults if fault.where not in absent]
    faults += find_forbidden({"trainer": functions_of(cfg["trainer"] or {})}, allowed)
    ConfigError.refuse(faults)
    settle_hub([used])
