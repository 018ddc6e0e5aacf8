"""Rows from the hub or from files: split, shuffled, limited, and in the form that a trainer takes.

What costs time is cached by its content, so that a second process, or the next run of a sweep,
finds it on disk.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
from datasets import Dataset

from runner.dataset.convert import RowRequest
from runner.dataset.loaded_rows import HeldOut, Rows, digests
from runner.dataset.media_source import find_media
from runner.dataset.remote_files import copy_here
from runner.dataset.request import check_words, read_cuts, read_limits, split_of, unnamed_sets
from runner.dataset.row_source import open_source
from runner.dataset.source_files import find_files, path_text
from runner.dataset.step import list_steps
from runner.schema.role import Role

log = logging.getLogger(__name__)


def load_rows(
    path: str | list[str],
    *,
    form: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    split: dict[Literal["train", "eval"], Any] | None = None,
    map: dict[str, Any] | list[dict[str, Any] | None] | None = None,
    columns: dict[Role, str] | None = None,
    system: str | None = None,
    limit: dict[Literal["train", "eval"], int | None] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    streaming: bool = False,
    bad_rows: str = "refuse",
    without: Sequence[str] = (),
    image_folder: str | None = None,
    image_urls: bool = False,
    join_turns: Literal["system", "all"] | None = None,
    thoughts: Literal["inline"] | None = None,
    context_separator: str | None = None,
    to: str | None = None,
    keep: Sequence[str] | None = None,
) -> tuple[Rows | None, HeldOut]:
    """The training rows, and the held-out rows: one set, a mapping of named sets, or None.

    ``path`` is a name on the hub, a file, a folder, a pattern of files, a list of these,
    ``runner://...``, or a URL (``s3://...``) whose files are copied into the cache. ``split`` has
    ``train`` and ``eval``, each a slice as datasets writes it (``train[:90%]``); ``eval`` may map
    names to slices, or to functions such as a partial of this one, whose held-out rows are meant.
    Training rows are shuffled before ``limit`` is taken, because files are often sorted, and the
    head of a sorted file is no sample; held-out rows keep their order. ``limit`` counts rows of the
    source. ``map`` is a function row -> row, or None to leave it out, or several of them; each goes
    over the source's rows before their form is found. ``without`` names columns that are as if they
    were not there. Images are below ``image_folder``, else the first file's folder, and with
    ``image_urls`` at URLs. ``join_turns="system"`` puts the text of a system turn in front of the
    next question, and ``all`` makes one of turns of one speaker that follow each other;
    ``thoughts="inline"`` writes what a turn keeps beside its content as ``<think>`` in front of it.
    ``context_separator`` is the text between a question and its context, an empty line by default,
    in which a typed ``\\n`` is a line end. ``to`` is the trainer form; None changes no row.

    Raises DataError with every bad row of a split; ``bad_rows="drop"`` logs and skips them.
    """
    train, evals = read_cuts(split)
    limits = read_limits(limit)
    name = path_text(path)
    with _each_in_turn():
        files = find_files(copy_here(path))
        request = RowRequest(
            form=form,
            columns=columns,
            system=system,
            bad_rows=bad_rows,
            to=to or "",
            keep=keep,
            steps=list_steps(map),  # type: ignore[arg-type]
            without=without,
            media=find_media(files.paths if files else (), image_folder, image_urls),
            join_turns=join_turns,
            thoughts=thoughts,
            context_separator=context_separator,
        )
        check_words(files, bad_rows, config=config, revision=revision)
        if files:
            files = files.only(_splits_of([train, *evals.values()]))
        source = open_source(name, files, config, revision, streaming)
        rows = None
        if train:
            rows = source.read("train", train, limits["train"], seed if shuffle else None, request)
        held_out = {}
        for set_name, cut in evals.items():
            if callable(cut):
                held_out_rows = _read_other_source(cut, limits["eval"], to=to, keep=keep, seed=seed)
            else:
                held_out_rows = source.read("eval", cut, limits["eval"], None, request)
            held_out[set_name] = held_out_rows
            label = cut if isinstance(cut, str) else set_name or "eval"
            _warn_of_shared_rows(rows, held_out_rows, f"{name} {label}")
    return rows, unnamed_sets(held_out)


def _read_other_source(load: Callable[..., Any], limit: int | None, **options: object) -> Rows:
    """The held-out rows of a source of their own, at most so many of them."""
    _, rows = load(**options)
    if limit:
        rows = rows.take(limit)
    read: Rows = rows
    return read


def _splits_of(cuts: Iterable[object]) -> list[str]:
    """The splits that some slices are of; sources of their own are left out."""
    splits = []
    for cut in cuts:
        if isinstance(cut, str):
            splits += [split_of(part) for part in cut.split("+")]
    return splits


def _warn_of_shared_rows(train: Rows | None, held_out: Rows, label: str) -> None:
    """Say how many held-out rows are trained on too; of streams nobody can know."""
    if not isinstance(train, Dataset) or not isinstance(held_out, Dataset):
        return
    is_shared = np.isin(digests(held_out), digests(train))
    shared = int(is_shared.sum())
    if shared:
        log.warning("%s: %d of %d held-out rows are also trained on", label, shared, len(held_out))


def _each_in_turn() -> AbstractContextManager[None]:
    """Has the first process of a machine do the work, and the others find it cached."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return nullcontext()
    import torch
    from accelerate import PartialState

    # Without an accelerator the processes find each other only where they are asked to use the CPU.
    state = PartialState(cpu=not torch.accelerator.is_available())
    turn: AbstractContextManager[None] = state.local_main_process_first()
    return turn
