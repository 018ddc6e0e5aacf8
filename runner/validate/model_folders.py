"""Folders of models, tokenizers and templates that a run loads, checked before anything loads."""

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.dataset.dataset_check import DatasetCheck
from runner.dataset.form import answer_columns
from runner.dataset.media_faults import find_media_faults
from runner.errors import ConfigError, Fault
from runner.model.check import (
    find_group_faults,
    find_model_faults,
    find_scorer_faults,
    find_stop_faults,
    read_vocab_size,
)
from runner.model.check_tokenizer import find_template_argument_faults, find_tokenizer_faults
from runner.model.model_files import find_folder, has_processor
from runner.model.node import LOADER
from runner.model.reach import find_reach_faults
from runner.schema import upstream
from runner.schema.text import Config, nodes

TEMPLATE = "trainer.args.chat_template_path"


@dataclass(frozen=True)
class LoadedModel:
    """A model beside the one that is trained."""

    path: object
    scores: bool  # it needs a head that gives scores


def find_model_folder_faults(
    cfg: Config, rows: DatasetCheck, planned: Collection[Path]
) -> Iterator[Fault]:
    """A fault for each folder that could not be loaded, or does not fit the rows or the trainer.

    ``planned`` are folders of runs; what these will make is not looked for.
    """
    tokenizer = cfg["model"].get("tokenizer") or {}
    if not _is_planned(cfg["model"].get("path"), planned):
        yield from _find_faults_of_model(cfg, rows, planned)
    if rows.media and not _is_planned(tokenizer.get("path"), planned):
        yield from _find_faults_of_media(cfg, rows)
    groups = {name: cfg.get(name) for name in ("reward", "metric", "trainer")}
    for path, node in nodes(groups):
        if node["_target_"] == LOADER and not _is_planned(node.get("path"), planned):
            yield from find_model_faults(node, "lm", where=path)
    template = cfg["trainer"]["args"].get("chat_template_path")
    if _is_template_file(template) and not Path(template).is_file():
        yield Fault(
            where=TEMPLATE,
            found=f"there is no file {template}",
            expected="a template, or a tokenizer's folder",
            fix="=<file>",
        )
    tolerate = cfg.get("tolerate") or {}
    for where, model in _list_loaded_models(cfg).items():
        if not isinstance(model.path, str) or _is_planned(model.path, planned):
            continue
        if model.scores and not tolerate.get("random_head"):
            yield from find_scorer_faults(model.path, where)
            continue
        try:
            find_folder(model.path, where)
        except ConfigError as error:
            yield from error.faults


def _is_planned(path: object, planned: Collection[Path]) -> bool:
    """True for a path in a folder that an earlier stage will make."""
    absolute = Path(str(path)).absolute()
    return any(absolute.is_relative_to(folder) for folder in planned)


def _is_template_file(template: object) -> bool:
    return isinstance(template, str) and template.endswith((".jinja", ".j2"))


def _find_faults_of_model(
    cfg: Config, rows: DatasetCheck, planned: Collection[Path]
) -> Iterator[Fault]:
    """The faults of the model that is trained, of its tokenizer, and of settings for both."""
    model = cfg["model"]
    trainer = cfg["trainer"]
    tokenizer = model.get("tokenizer") or {}
    tolerate = cfg.get("tolerate") or {}
    max_length = trainer["args"].get("max_length")
    if tolerate.get("beyond_positions"):
        max_length = None
    model_faults = find_model_faults(model, trainer["head"], max_length, cfg.get("peft"))
    yield from model_faults
    # A folder whose faults are reported is not read again for its tokenizer.
    is_reported = bool(model_faults) and tokenizer.get("path") == model.get("path")
    if not is_reported and not _is_planned(tokenizer.get("path"), planned):
        yield from _find_faults_of_tokenizer(cfg, rows)
    yield from _find_faults_of_settings(cfg)


def _find_faults_of_tokenizer(cfg: Config, rows: DatasetCheck) -> Iterator[Fault]:
    """The faults of the tokenizer, also with the rows that the check of the dataset has kept."""
    model = cfg["model"]
    tokenizer = model.get("tokenizer") or {}
    tolerate = cfg.get("tolerate") or {}
    is_sampled = cfg["trainer"]["form"] == "prompt"  # the answers, which the rows do not have then
    sample = []
    for row in rows.sample:
        answers = () if is_sampled else answer_columns(row)
        sample.append((row, answers))
    find_in_rows = None
    if sample and not has_processor(tokenizer):  # else a processor makes parts of the texts
        parts = list(cfg["dataset"].get("parts") or ())
        is_tolerated = bool(tolerate.get("lost_text"))
        find_in_rows = functools.partial(
            find_reach_faults, sample, parts=parts, tolerated=is_tolerated
        )
    vocabulary = read_vocab_size(model)
    yield from find_tokenizer_faults(tokenizer, vocabulary, chats=rows.chats, look=find_in_rows)


def _find_faults_of_media(cfg: Config, rows: DatasetCheck) -> Iterator[Fault]:
    """The faults of media that the model, its processor or the trainer does not take."""
    is_read = has_processor(cfg["model"].get("tokenizer") or {})
    for modality, column in rows.media.items():
        yield from find_media_faults(cfg, modality, is_read=is_read, column=column)


def _find_faults_of_settings(cfg: Config) -> Iterator[Fault]:
    """A fault for each setting that the model or its template has no place for."""
    model = cfg["model"]
    trainer = cfg["trainer"]
    args = trainer["args"]
    fields = upstream.config_fields(args)
    template_arguments = args.get("chat_template_kwargs")
    if isinstance(template_arguments, dict):
        tokenizer = model.get("tokenizer") or {}
        where = "trainer.args.chat_template_kwargs"
        yield from find_template_argument_faults(tokenizer, template_arguments, where)
    if not cfg.get("peft") and "critic" not in fields:  # which add weights of their own
        optimizer = cfg.get("optimizer") or {}
        yield from find_group_faults(model, optimizer.get("groups") or ())
    stop = args.get("stop_token_id")
    vocabulary = read_vocab_size(model)
    if isinstance(stop, int) and isinstance(vocabulary, int) and stop >= vocabulary:
        where = "trainer.args.stop_token_id"
        yield Fault(
            where=where,
            found=str(stop),
            expected=f"a token: below {vocabulary}",
            fix=f"{where}=null",
        )
    if upstream.samples_by_library(trainer["_target_"], fields) and not args.get("use_vllm"):
        yield from find_stop_faults(model)


def _list_loaded_models(cfg: Config) -> dict[str, LoadedModel]:
    """The models of rewards, metrics and the trainer, by the keys of their paths."""
    args = cfg["trainer"]["args"]
    models: dict[str, LoadedModel] = {}
    groups = {name: cfg.get(name) for name in ("reward", "metric", "trainer")}
    for path, node in nodes(groups):
        target = str(node["_target_"])
        if target.startswith(("runner.model.", "runner.reward.")):
            scores = target.startswith("runner.reward.outcome.") and not node.get("random_head")
            for key in ("path", "model"):
                models[f"{path}.{key}"] = LoadedModel(node.get(key), scores)
    models["trainer.args.reward_model_path"] = LoadedModel(args.get("reward_model_path"), True)
    template = args.get("chat_template_path")  # may be the folder of a tokenizer
    if template and not _is_template_file(template):
        models[TEMPLATE] = LoadedModel(template, False)
    return models
