"""Faults that would stop a run later, looked for before a folder is made or a heavy library imported.

The configuration is right by itself when it comes here; this is about the world around it: rows,
folders of models, libraries that are missing or were not tried (only looked for, never imported),
processes and places to write.
"""

import functools
import itertools
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.config import NUM_PROCESSES, Composed, rank, world_size
from runner.config.machines import find_machine_faults, processes_of
from runner.config.override import is_local
from runner.config.sharding import (
    NOT_RESUMED,
    find_gpu_faults,
    find_lone_faults,
    has_devices,
    split_layers,
)
from runner.dataset.dataset_check import DatasetCheck, check_dataset, find_media_faults
from runner.dataset.form import answer_columns
from runner.errors import ConfigError, DataError, EnvironmentFault, Fault, name_jobs
from runner.io.distribution import read_requirements, to_install
from runner.io.files import HUB_NAME, display_path, hub_home
from runner.io.hub import OFFLINE, hub_silence, is_cached, is_offline
from runner.io.secrets import hidden
from runner.model.check import (
    LOADER,
    find_group_faults,
    find_model_faults,
    find_scorer_faults,
    find_stop_faults,
    read_vocab_size,
)
from runner.model.check_tokenizer import find_template_argument_faults, find_tokenizer_faults
from runner.model.folder import find_folder, has_processor
from runner.model.reach import find_reach_faults
from runner.run import Run, installed_version
from runner.run.key import canonical_text, folder_of
from runner.run.seal import sealed_checkpoints
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.source import LIBRARY_PACKAGES, Definition, find_definition
from runner.schema.text import Config, last_key, nodes, read_tables, walk
from runner.tracker.library import LIBRARIES
from runner.validate.context import JUDGED
from runner.validate.targets import find_absent_imports

TABLES = read_tables(__file__)
HERE = ("local", "accelerate")  # launchers that train on this machine
# Arguments that every trainer of rewards gives to them beside the columns of the rows.
GIVEN_TO_REWARDS = {*JUDGED, "prompts", "trainer_state", "log_extra", "log_metric", "environments"}


def check_ahead(jobs: Sequence[Sequence[Composed]], *, elsewhere: bool = False) -> None:
    """Raise an error with all that would stop one of these runs; GPUs may be ``elsewhere``, with who starts them."""
    runs = [composed for stages in jobs for composed in stages]
    ConfigError.refuse(fault for composed in runs for fault in find_other_worlds(composed))
    EnvironmentFault.refuse(
        find_variable_faults(max((composed.machines for composed in runs), default=1))
    )
    to_do = {
        folder: run for run in runs if Run(folder := _place(run)).status()["state"] != "finished"
    }
    check_parts(jobs, to_do)
    ConfigError.refuse(
        fault for folder, run in to_do.items() for fault in find_split_faults(run, folder)
    )
    EnvironmentFault.refuse(find_environment_faults([*to_do.values()], elsewhere) if to_do else ())


def _place(composed: Composed) -> Path:
    return folder_of(composed.cfg, composed.overrides).absolute()


def check_parts(jobs: Sequence[Sequence[Composed]], to_do: Collection[Path] | None = None) -> None:
    """Raise an error with all faults of rows and models of the runs ``to_do``, but what an earlier stage will make."""
    places = {id(composed): _place(composed) for stages in jobs for composed in stages}
    folders = set(places.values())
    wanted = folders if to_do is None else to_do
    # of the rows and of the rest, by the parts
    seen: dict[str, tuple[list[Fault], list[Fault]]] = {}

    def look(composed: Composed) -> tuple[list[Fault], list[Fault]]:
        # what is read here, which most jobs of a sweep have in common
        trainer = composed.cfg["trainer"]
        names = [
            "_target_",
            "max_length",
            "reward_model_path",
            "dataset_kwargs",
            "train_sampling_strategy",
            "chat_template_path",
            "chat_template_kwargs",
            "stop_token_id",
            "use_vllm",
        ]
        fields = {name: trainer["args"].get(name) for name in names}
        groups = ("dataset", "model", "peft", "reward", "metric", "tolerate", "weight", "optimizer")
        parts = {name: composed.cfg.get(name) for name in groups} | {
            "trainer": {**trainer, "args": fields}
        }
        if (key := canonical_text(parts)) not in seen:
            rows = _look_at_rows(
                json.dumps(parts["dataset"], default=str), trainer["form"], os.getcwd()
            )
            seen[key] = rows.faults, list(_find_faults(parts, rows, folders))
        return seen[key]

    looks = [
        (stages[0].command, [look(run) for run in stages if places[id(run)] in wanted])
        for stages in jobs
    ]
    data = name_jobs(
        [(words, [fault for rows, _ in pairs for fault in rows]) for words, pairs in looks]
    )
    other = name_jobs(
        [(words, [fault for _, rest in pairs for fault in rest]) for words, pairs in looks]
    )
    if other:
        raise ConfigError([*data, *other])
    DataError.refuse(data)


@lru_cache(maxsize=64)
def _look_at_rows(node: str, form: str, here: str) -> DatasetCheck:
    return check_dataset(json.loads(node), form)  # once for the jobs of a sweep that share the rows


def _find_faults(cfg: Config, rows: DatasetCheck, folders: set[Path]) -> Iterator[Fault]:
    """A fault for each part of a run, but its rows, that could not be had or does not fit another one."""
    model, tokenizer = cfg["model"], cfg["model"].get("tokenizer") or {}
    tolerate, args = cfg.get("tolerate") or {}, cfg["trainer"]["args"]
    if not _is_ahead(model.get("path"), folders):
        length = None if tolerate.get("beyond_positions") else args.get("max_length")
        model_faults = find_model_faults(model, cfg["trainer"]["head"], length, cfg.get("peft"))
        yield from model_faults
        is_known = model_faults and tokenizer.get("path") == model.get("path")
        if not is_known and not _is_ahead(tokenizer.get("path"), folders):
            waits = cfg["trainer"]["form"] == "prompt"  # for answers that are sampled
            sample = [(row, () if waits else answer_columns(row)) for row in rows.sample]
            parts, is_tolerated = (
                list(cfg["dataset"].get("parts") or ()),
                bool(tolerate.get("lost_text")),
            )
            look = functools.partial(find_reach_faults, sample, parts=parts, tolerated=is_tolerated)
            # else a processor makes parts of the texts
            is_text = bool(sample) and not has_processor(tokenizer)
            yield from find_tokenizer_faults(
                tokenizer, read_vocab_size(model), chats=rows.chats, look=look if is_text else None
            )
        yield from _find_argument_faults(cfg, model, tokenizer)
    if rows.media and not _is_ahead(tokenizer.get("path"), folders):
        is_read = has_processor(tokenizer)
        for modality, column in rows.media.items():
            yield from find_media_faults(cfg, modality, is_read=is_read, column=column)
    others: dict[str, tuple[object, bool]] = {}
    for path, node in nodes(
        {"reward": cfg.get("reward"), "metric": cfg.get("metric"), "trainer": cfg["trainer"]}
    ):
        if str(node["_target_"]).startswith(("runner.model.", "runner.reward.")):
            scores = node["_target_"].startswith("runner.reward.outcome.") and not node.get(
                "random_head"
            )
            others |= {f"{path}.{key}": (node.get(key), scores) for key in ("path", "model")}
        if node["_target_"] == LOADER and not _is_ahead(node.get("path"), folders):
            yield from find_model_faults(node, "lm", where=path)
    others["trainer.args.reward_model_path"] = (args.get("reward_model_path"), True)
    template, where = args.get("chat_template_path"), "trainer.args.chat_template_path"
    is_file = isinstance(template, str) and template.endswith((".jinja", ".j2"))
    if is_file and not Path(str(template)).is_file():
        yield Fault(
            where, f"there is no file {template}", "a template, or a tokenizer's folder", "=<file>"
        )
    elif template and not is_file:
        others[where] = (template, False)
    for where, (path_of_other, scores) in others.items():
        if not isinstance(path_of_other, str) or _is_ahead(path_of_other, folders):
            continue
        if scores and not tolerate.get("random_head"):
            yield from find_scorer_faults(path_of_other, where)
            continue
        try:
            find_folder(path_of_other, where)
        except ConfigError as error:
            yield from error.faults
    # The columns of the rows, as far as they are known, that a setting, the trainer or a reward
    # cannot do without.
    columns, how = rows.columns or set(), args.get("dataset_kwargs")
    listed = ", ".join(sorted(columns))
    if (
        isinstance(how, dict)
        and how.get("skip_prepare_dataset")
        and columns
        and "input_ids" not in columns
    ):
        yield Fault(
            where="trainer.args.dataset_kwargs",
            found=f"rows that nobody makes tokens of: {listed}",
            expected="rows with input_ids and labels",
            fix="=null",
        )
    if cfg["trainer"]["head"] != "score" and "chosen_ids" in columns:
        yield Fault(
            where="dataset",
            found="pairs of tokens, and this trainer makes tokens itself",
            expected="text or conversations",
            fix="trainer=reward, which takes them",
        )
    if cfg["trainer"]["form"] != "prompt":
        return
    if (
        columns
        and (own := cfg["trainer"].get("reference_column"))
        and not {own, "reference"} & columns
    ):
        yield Fault(
            where="dataset",
            found=f"the rows have neither answers nor a column {own}",
            expected="what the trainer's own teacher sees beside the prompt",
            fix="another dataset",
        )
    for path, node in nodes({"reward": cfg.get("reward")}):
        signature = read_signature(node["_target_"])
        if not columns or signature is None or not GIVEN_TO_REWARDS & set(signature.parameters):
            continue
        for name in sorted(set(signature.required) - set(node) - GIVEN_TO_REWARDS - columns):
            yield Fault(
                where=f"{path}",
                found=f"it takes {name}, and the rows have no such column",
                expected=f"some of {listed}",
                fix=f"a column {name} in the data, or {path}.{name}=<value>",
            )
        named = node.get("column", getattr(signature.parameters.get("column"), "default", None))
        if str(node["_target_"]).startswith("runner.reward.") and named and named not in columns:
            usable = columns - {"prompt"}
            likely = next(iter(usable)) if len(usable) == 1 else "<column>"
            yield Fault(
                where=f"{path}.column",
                found=f"the rows have no column {named}",
                expected=f"one of {listed}",
                fix=f"={likely}",
            )


def _find_argument_faults(cfg: Config, model: Config, tokenizer: Config) -> Iterator[Fault]:
    """A fault for each value of the trainer's config that the model or its template has no place for."""
    args, fields = cfg["trainer"]["args"], upstream.config_fields(cfg["trainer"]["args"])
    arguments = args.get("chat_template_kwargs")
    if isinstance(arguments, dict):
        where = "trainer.args.chat_template_kwargs"
        yield from find_template_argument_faults(tokenizer, arguments, where)
    if not cfg.get("peft") and "critic" not in fields:  # which add weights of their own
        yield from find_group_faults(model, (cfg.get("optimizer") or {}).get("groups") or ())
    stop, vocabulary = args.get("stop_token_id"), read_vocab_size(model)
    if isinstance(stop, int) and isinstance(vocabulary, int) and stop >= vocabulary:
        where = "trainer.args.stop_token_id"
        yield Fault(where, str(stop), f"a token: below {vocabulary}", f"{where}=null")
    if upstream.samples_by_library(cfg["trainer"]["_target_"], fields) and not args.get("use_vllm"):
        yield from find_stop_faults(model)


def _is_ahead(path: Any, folders: set[Path]) -> bool:
    return any(Path(str(path)).absolute().is_relative_to(folder) for folder in folders)


# The values that need a library, as start.yaml has them, and those of fields that TRL and
# transformers name.
TRACKERS = {
    "report_to": [
        (name, tracker.library, tracker.package)
        for name, tracker in LIBRARIES.items()
        if tracker.library
    ]
}
WANTED = TABLES["wanted"] | upstream.WANTED | TRACKERS
OTHER_VALUES = {
    "attention": "sdpa",
    "report_to": "none",
    "rollout_engine": "auto",
} | upstream.OTHER_VALUES


def find_variable_faults(machines: int = 1) -> Iterator[Fault]:
    """A fault for each variable that would end an import, or change a training in silence; MPI counts ``machines``."""
    for name, (names, values, expected) in itertools.product(
        sorted(os.environ), TABLES["variables"]
    ):
        is_once = name.endswith("_SIZE") and os.environ[name] == str(machines)
        if (
            re.fullmatch(names, name)
            and not re.fullmatch(values, os.environ[name], re.IGNORECASE)
            and not is_once
        ):
            yield Fault(name, hidden(repr(os.environ[name]))[:80], expected, f"unset {name}")


def find_environment_faults(to_do: Sequence[Composed], elsewhere: bool) -> Iterator[Fault]:
    """A fault for each library that is missing or was not tried, and each place that must take files and does not."""
    without_gpu = not has_devices()
    for composed in to_do:
        args = composed.cfg["trainer"]["args"]
        yield from find_missing_libraries(composed.cfg)
        yield from _find_tracker_variables(composed.cfg)
        is_here = not elsewhere and composed.choices.get("launcher", "local") in HERE
        on_cpu = args.get("use_cpu") or (is_here and without_gpu)
        lacking = list(find_gpu_faults(args, composed.typed)) if on_cpu else []
        lacking += (
            [
                Fault(
                    where="trainer",
                    found="it learns on a GPU alone",
                    expected="a CUDA GPU",
                    fix="a machine that has one",
                )
            ]
            if on_cpu and composed.cfg["trainer"].get("needs_gpu")
            else []
        )
        yield from lacking or find_lone_faults(args, processes_of(composed.cfg))
    if not all((composed.cfg.get("tolerate") or {}).get("versions") for composed in to_do):
        yield from find_other_versions()
    if world_size() > 1 and "MASTER_ADDR" not in os.environ:
        yield Fault(
            where="MASTER_ADDR",
            found=f"not set, and WORLD_SIZE is {world_size()}",
            expected="the host of the first process, as torchrun sets it",
            fix="unset WORLD_SIZE RANK LOCAL_RANK",
        )
    # A fault where converted rows could not be kept, as they are for every run.
    variable = "HF_DATASETS_CACHE" if os.environ.get("HF_DATASETS_CACHE") else "HF_HOME"
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or hub_home() / "datasets").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        closed = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written"
    except OSError as error:
        closed = str(error)
    if closed:
        yield Fault(
            where=f"{variable}",
            found=f"{folder}: {closed}",
            expected="a folder for rows and models",
            fix=f"export {variable}=<a folder that you may write>",
        )
    for root in dict.fromkeys(
        Path(str(composed.cfg["output_root"])).absolute() for composed in to_do
    ):
        there = next(path for path in (root, *root.parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            kind = "closed to you" if there.is_dir() else "a file"
            yield Fault(
                where="output_root",
                found=f"{display_path(there)} is {kind}",
                expected="a folder",
                fix="=<a folder that you may write>",
            )


def settle_hub(cfgs: Sequence[Config]) -> None:
    """Ask the hub once, where something of it is wanted; without an answer the libraries look in the cache alone.

    They would ask for each file again and again, half a minute long. Raises EnvironmentFault for
    what is in no cache.
    """
    wanted = {
        (name, kind): where
        for cfg in reversed(cfgs)
        for where, name, kind in reversed([*_names_of_hub(cfg)])
    }
    if not wanted or not (silence := f"{OFFLINE} is set" if is_offline() else hub_silence()):
        return
    lacking = [
        (where, name)
        for (name, kind), where in reversed(wanted.items())
        if not is_cached(name, kind)
    ]
    online = f"unset {OFFLINE}" if is_offline() else "the same command with a network"
    faults = (
        Fault(
            where=f"{key}",
            found=f"{name} is not in the cache, and {silence}",
            expected="a connection to the hub",
            fix=f"{online}, or {key}=<a copy here>",
        )
        for key, name in lacking
    )
    EnvironmentFault.refuse(faults)
    if not is_offline():
        print(f"note      {silence}: what is in the cache is used", flush=True)
        os.environ[OFFLINE] = "1"


def _names_of_hub(cfg: Config) -> Iterator[tuple[str, str, str]]:
    for path, node in nodes(
        {key: cfg.get(key) for key in ("dataset", "model", "reward", "metric", "trainer")}
    ):
        target, name = str(node["_target_"]), str(node.get("path") or "")
        is_own = target.startswith(("runner.model.", "runner.dataset.load.", "runner.reward."))
        if is_own and HUB_NAME.fullmatch(name) and not (is_local(name) or Path(name).exists()):
            yield (
                f"{path}.path",
                name,
                "datasets" if target.startswith("runner.dataset.") else "models",
            )


def find_split_faults(composed: Composed, folder: Path) -> Iterator[Fault]:
    """A fault where a run whose layers are split would have to go on from a checkpoint of its own."""
    split = split_layers(composed.cfg["trainer"]["args"])
    if split and (sealed := sealed_checkpoints(folder / "checkpoints")):
        yield Fault(
            where=f"trainer.args.parallelism_config.{split[0]}",
            found=f"it would go on from {display_path(sealed[-1])}, and it {NOT_RESUMED}",
            expected="a run from its first step",
            fix="name=<another name>",
        )


def find_other_worlds(composed: Composed) -> Iterator[Fault]:
    """A fault where a launcher has started other processes than configured, or machines would not find each other."""
    world, own = world_size(), processes_of(composed.cfg)
    rank()  # raises where it is none, before a folder is made
    if world > 1 and (own != world or NUM_PROCESSES in composed.typed):
        word = (
            f"{NUM_PROCESSES}={own}"
            if composed.machines == 1
            else f"launcher.num_machines={composed.machines}"
        )
        yield Fault(
            where="launcher.num_processes",
            found=f"{own}, in one of {world} processes that torchrun or its like has started",
            expected="one program that starts the processes",
            fix=f"python -m runner <the same words>, or the same line without {word}",
        )
    # The launcher that accelerate has for a CPU starts one process, whatever --num_processes says.
    if (
        "ACCELERATE_MIXED_PRECISION" in os.environ
        and "MASTER_ADDR" in os.environ
        and "WORLD_SIZE" not in os.environ
    ):
        yield Fault(
            where="accelerate launch",
            found="one process, though its --num_processes is more than 1",
            expected="one program that starts the processes",
            fix=f"python -m runner <the same words> launcher.num_processes={own if own > 1 else 2}",
        )
    if composed.choices.get("launcher") == "accelerate":
        yield from find_machine_faults(composed.cfg["launcher"], composed.machines)


def find_missing_libraries(cfg: Config) -> Iterator[Fault]:
    """A fault for each library that a value, or the user's own code, asks for and that is not there."""
    for path, value in walk(cfg):
        where, key = re.sub(r"\.(?:_target_|\d+)$", "", path), last_key(path)
        for pattern, library, package in WANTED.get(key, ()):
            there = map(find_spec, (library, *TABLES["instead"].get(library, ())))
            if re.fullmatch(pattern, str(value)) and not any(there):
                fix = to_install(package) + (
                    f", or {where}={OTHER_VALUES[key]}" if key in OTHER_VALUES else ""
                )
                yield Fault(
                    where,
                    f"{value} needs {library}, which is not installed",
                    f"the package {library}",
                    fix,
                )
        is_own = key == "_target_" and str(value).partition(".")[0] not in LIBRARY_PACKAGES
        found = find_definition(value) if is_own else None
        for place, name in (
            find_absent_imports(found.module.name) if isinstance(found, Definition) else ()
        ):
            place_text = display_path(Path(place))
            yield Fault(
                where=f"{where}",
                found=f"{place_text} imports {name}, which is not there",
                expected=f"the module {name}",
                fix=f"pip install <the package of {name}>, or mend {place_text}",
            )


def _find_tracker_variables(cfg: Config) -> Iterator[Fault]:
    """A fault for each tracker that goes by a variable which neither the environment nor the configuration sets."""
    chosen = cfg["tracker"].get("report_to")
    given = {*os.environ, *(cfg["tracker"].get("environment") or {})}
    for tracker in [chosen] if isinstance(chosen, str) else chosen or ():
        variable = LIBRARIES[tracker].needed_variable if tracker in LIBRARIES else ""
        if variable and variable not in given:
            expected = f"{variable} set, as {tracker} does it"
            fix = f"export {variable}=..., or tracker.report_to=none"
            yield Fault("tracker.report_to", f"{tracker}, and {variable} is not set", expected, fix)


def find_other_versions() -> Iterator[Fault]:
    """A fault for each library that the runner needs in another version than the installed one."""
    from packaging.requirements import Requirement

    for required in (text for text in read_requirements() if "extra ==" not in text):
        name, needed = Requirement(required).name, str(Requirement(required).specifier)
        if not (version := installed_version(name)) or not is_within(version, needed):
            found = f"{name} {version}, which was not tried" if version else "not installed"
            yield Fault(name, found, needed, f"pip install '{required}', or tolerate.versions=true")


def is_within(version: str | None, required: str) -> bool:
    """True for a version that is required, by its numbers: builds of a machine's own and what comes before a release
    count as that release. True where nobody can tell.

    >>> [is_within(version, ">=2.9.0,<2.14") for version in ("2.13.0+cpu", "2.9", "2.9.0a0+nv25", "2.14")]
    [True, True, True, False]
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "").base_version in SpecifierSet(required)
    except InvalidVersion:
        return True
