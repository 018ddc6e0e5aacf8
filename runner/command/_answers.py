"""The file of answers that ``predict`` writes for rows: completions, or scores of known answers."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.command._inference import InferenceRequest, to_file_name
from runner.command._row_answers import write_completions, write_scores
from runner.command.predict_options import Options
from runner.errors import ConfigError, Fault
from runner.generate.held_out_rows import Rows
from runner.generate.prediction import PredictionFile, prediction_key
from runner.io.files import display_path
from runner.io.terminal import quiet, sample_lines
from runner.schema.literal import number
from runner.schema.text import Node

Request = InferenceRequest[Options]
PARTS = ("model", "dataset", "environment", "quant")  # on which the answers depend
SHOWN_COMPLETIONS = 3


def predict(request: Request, callbacks: Mapping[str, Node]) -> int:
    """Answer every row that is asked for, and put the answers into a file.

    The ``callbacks`` hear of it. The file is named by all that its answers depend on: the same
    command finds it again, and goes on with the rows that it lacks.
    """
    from runner.model.chat import check_rendering, check_template
    from runner.training.callback.user import PredictionEvents
    from runner.training.components.chat_rows import check_texts
    from runner.training.components.trained_model import load_trained

    weights = request.weights
    facts = request.facts(PARTS)
    if request.options.logits:
        facts["logits"] = True
    file = _file_of(request, prediction_key(facts))
    if file.is_finished():
        print(f"finished  {display_path(file.path)} already; nothing was changed")
        return 0
    shown_weights = ""
    if weights.folder is not None:
        shown_weights = f" ({weights.name})"
    print(f"model     {request.name}{shown_weights}", flush=True)
    is_scorer = request.head == "score"
    form = "answer" if is_scorer else "prompt"
    with file.lock(), quiet():
        began = time.monotonic()
        # The rows come first, so that what is wrong with them shows at once.
        set_name, rows = _read_single_set(request, form)
        is_chat = isinstance(rows[0].get("prompt"), list)
        model, tokenizer = load_trained(request.experiment, request.weights, request.head)
        check_template(tokenizer, chats=is_chat)
        if is_chat:
            check_rendering(tokenizer, ((row, ()) for row in rows))
            check_texts(request.experiment, tokenizer, [rows], form)
        print(f"rows      {len(rows)} of {request.data}, {set_name}", flush=True)
        parts = {
            "tokenizer": tokenizer,
            "processing_class": tokenizer,
            "folder": file.path.parent,
            "eval_dataset": rows,
        }
        events = PredictionEvents(callbacks, parts, model)
        file.on_batch = events.on_step
        if is_scorer:
            old = write_scores(request, model, tokenizer, rows, file)
        else:
            old = write_completions(request, model, tokenizer, rows, file)
    made = file.finish({"asked": request.name, "rows_of": set_name} | facts)
    seconds = time.monotonic() - began
    summarise = _summarise_scores if is_scorer else _summarise_completions
    figures = {"test_samples": len(made), "test_runtime": seconds}
    figures |= summarise(made, old, seconds)
    events.on_end(figures)
    print(f"to        {display_path(file.path)}")
    return 0


def _file_of(request: Request, key: str) -> PredictionFile:
    """The file for the answers, by default one named by the rows, the weights and the key."""
    options = request.options
    weights = request.weights.name
    parts = [
        request.data,
        to_file_name(options.set or ""),
        "" if weights == "model" else weights,
        key,
    ]
    name = "-".join(part for part in parts if part)
    path = options.to or request.folder("predictions") / f"{name}.jsonl"
    return PredictionFile(Path(path), key)


def _read_single_set(request: Request, form: str) -> tuple[str, Rows]:
    """The name and the rows of the set that is meant; ConfigError where there are several."""
    sets = request.read_sets(form)
    if len(sets) > 1:
        first = next(iter(sets))
        expected = f"one of {', '.join(sets)}"
        raise ConfigError(
            Fault(
                where="set",
                found=f"{len(sets)} sets",
                expected=expected,
                fix=f"set={first}",
            )
        )
    (named_rows,) = sets.items()
    return named_rows


def _summarise_scores(
    rows: Sequence[Mapping[str, Any]], old: int, seconds: float
) -> dict[str, float]:
    """Print how many scores were written, and return their figures."""
    mean = sum(row["score"] for row in rows) / len(rows)
    written = f"wrote     {len(rows)} scores{_describe_old(old)}"
    print(f"{written}, {number(mean)} on average, in {number(seconds, 2)} s")
    return {"test_score": mean}


def _summarise_completions(
    rows: Sequence[Mapping[str, Any]], old: int, seconds: float
) -> dict[str, float]:
    """Print how many completions were written, and the first of them; return their figures."""
    stopped = sum(row["finish"] == "stop" for row in rows)
    tokens = sum(row["tokens"] for row in rows) / len(rows)
    ended = f"{stopped} ended by themselves, {number(tokens, 3)} tokens each"
    text = f"wrote     {len(rows)} completions{_describe_old(old)}, {ended}"
    print(f"{text}, in {number(seconds, 2)} s")
    pairs = [(row["prompt"], row["completion"]) for row in rows[:SHOWN_COMPLETIONS]]
    print("\n".join(sample_lines(pairs)))
    return {"test_stopped": stopped / len(rows), "test_tokens": tokens}


def _describe_old(count: int) -> str:
    """A part of a line on answers that an interrupted command had written before."""
    return f", {count} of them from before" if count else ""
