"""Has a trained model answer rows or a prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command import CommandLine, options_of
from runner.command._request import InferenceRequest, in_a_name, read_request
from runner.config.override import dotted_key
from runner.errors import ConfigError, Fault
from runner.generate.held_out_rows import Rows, find_prompt_fault
from runner.generate.prediction import Batch, PredictionFile, prediction_key
from runner.io.files import display_path, read_last_row, write_bytes
from runner.io.terminal import print_answer, progress_bar, quiet, sample_lines
from runner.run.history import SAMPLE_FILES
from runner.schema.literal import number
from runner.schema.text import to_override

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.answer_reader import AnswerReader
    from runner.generate.completion import Completion
    from runner.generate.sampler import Model

PARTS = ("model", "dataset", "quant")  # on which the answers depend
# of which one is typed where the events of callbacks are wanted
ASK_CALLBACKS = {"callback", "allow"}
SHOWN_COMPLETIONS = 3
SCORED_COLUMNS = ("prompt", "completion", "text", "label")


def main(line: CommandLine) -> int:
    """Answer what the command line names, and return 0 when all of it is written."""
    if text := " ".join(line.runs[1:]):
        word_text = to_override("prompt", text)
        raise ConfigError(
            Fault(
                where="command line",
                found=f"{text!r}",
                expected="one run; what it should answer has a key",
                fix=f"python -m runner predict {line.runs[0]} {word_text}",
            )
        )
    typed = {dotted_key(word).partition(".")[0] for word in line.overrides}
    request = read_request(
        line, options_of("predict"), (*PARTS, *(["callback"] if typed & ASK_CALLBACKS else []))
    )
    options, head, faults = request.options, request.head, []
    if "prompt" in options and ("dataset" in request.chosen or "file" in options):
        faults.append(Fault("prompt", "prompt and rows", "one of them", "leave the other out"))
    if head == "score" and "prompt" in options and "completion" not in options:
        faults.append(
            Fault(
                where="prompt",
                found="no answer to it, but a reward model scores answers",
                expected="an answer, too",
                fix='completion="<text>"',
            )
        )
    if head == "lm" and "completion" in options:
        faults.append(
            Fault(
                where="completion",
                found="set, but a language model writes it itself",
                expected="none",
                fix="leave it out",
            )
        )
    if options.get("logits") and ("prompt" in options or head == "score"):
        found = (
            "true, but a reward model's score is its logit"
            if head == "score"
            else "true together with prompt"
        )
        faults.append(Fault("logits", found, "rows that a language model answers", "leave it out"))
    if head == "lm" and "prompt" not in options:
        faults += filter(None, [find_prompt_fault(request.cfg["dataset"], "dataset")])
    ConfigError.refuse(faults)
    return answer_prompt(request) if "prompt" in options else predict(request)


def _load(
    request: InferenceRequest, *, chats: bool | None = None
) -> tuple[Model, PreTrainedTokenizerBase, bool]:
    """Model and tokenizer, and whether prompts are turns of a chat."""
    from runner.model.chat import check_template
    from runner.training.components.model import load_trained

    model, tokenizer = load_trained(request.experiment, request.weights, request.head)
    if chats is None and "as" in request.options:
        chats = request.options["as"] == "chat"
    elif chats is None:
        files = (
            [request.run.folder / name for name in ("samples.jsonl", *SAMPLE_FILES)]
            if request.run
            else []
        )
        sampled = next(filter(None, map(read_last_row, files)), {})
        chats = bool(tokenizer.chat_template) and not isinstance(sampled.get("prompt"), str)
    check_template(tokenizer, chats=chats)
    return model, tokenizer, chats


# --- A file of rows -------------------------------------------------------------------------------
def predict(request: InferenceRequest) -> int:
    """Answer every row that is asked for, and put the answers into a file."""
    from runner.model.chat import check_rendering
    from runner.training.callback.user import PredictionEvents
    from runner.training.components.training_rows import check_texts

    weights, facts = request.weights, request.facts(PARTS)
    facts |= {"logits": True} if request.options.get("logits") else {}
    key, checkpoint = prediction_key(facts), "" if weights.name == "model" else weights.name
    parts = [request.data, in_a_name(request.options.get("set", "")), checkpoint, key]
    name = f"{'-'.join(filter(None, parts))}.jsonl"
    file = PredictionFile(
        Path(request.options.get("to") or request.folder("predictions") / name), key
    )
    if file.is_finished():
        print(f"finished  {display_path(file.path)} already; nothing was changed")
        return 0
    print(
        f"model     {request.name}{'' if weights.folder is None else f' ({weights.name})'}",
        flush=True,
    )
    with file.lock(), quiet():
        began, is_scorer = time.monotonic(), request.head == "score"
        # first: what is wrong shows at once
        sets = request.read_sets("answer" if is_scorer else "prompt")
        if len(sets) > 1:
            raise ConfigError(
                Fault(
                    "set",
                    f"{len(sets)} sets",
                    f"one of {', '.join(sets)}",
                    f"set={next(iter(sets))}",
                )
            )
        ((set_name, rows),) = sets.items()
        model, tokenizer, chats = _load(request, chats=isinstance(rows[0].get("prompt"), list))
        if chats:
            check_rendering(tokenizer, ((row, ()) for row in rows))
            check_texts(request.experiment, tokenizer, [rows], "answer" if is_scorer else "prompt")
        print(f"rows      {len(rows)} of {request.data}, {set_name}", flush=True)
        served = {"tokenizer": tokenizer, "processing_class": tokenizer, "folder": file.path.parent}
        asked = request.experiment.callbacks if request.chosen & ASK_CALLBACKS else {}
        events = PredictionEvents(asked, served | {"eval_dataset": rows}, model)
        file.on_batch = events.on_step
        old = _write_answers(request, model, tokenizer, rows, file)
    made = file.finish({"asked": request.name, "rows_of": set_name} | facts)
    before, seconds = f", {old} of them from before" if old else "", time.monotonic() - began
    figures = {"test_samples": len(made), "test_runtime": seconds}
    if is_scorer:
        figures["test_score"] = sum(row["score"] for row in made) / len(made)
        mean = number(figures["test_score"])
        print(f"wrote     {len(made)} scores{before}, {mean} on average, in {number(seconds, 2)} s")
    else:
        stopped = sum(row["finish"] == "stop" for row in made)
        figures |= {
            "test_stopped": stopped / len(made),
            "test_tokens": sum(row["tokens"] for row in made) / len(made),
        }
        ended = f"{stopped} ended by themselves, {number(figures['test_tokens'], 3)} tokens each"
        print(f"wrote     {len(made)} completions{before}, {ended}, in {number(seconds, 2)} s")
        print(
            "\n".join(
                sample_lines((row["prompt"], row["completion"]) for row in made[:SHOWN_COMPLETIONS])
            )
        )
    events.on_end(figures)
    print(f"to        {display_path(file.path)}")
    return 0


def _write_answers(
    request: InferenceRequest,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    file: PredictionFile,
) -> int:
    """Answer the rows, or score them, as far as the file lacks them; returns how many were there already."""
    from runner.generate.answer_reader import AnswerReader
    from runner.generate.completion import context_length
    from runner.generate.padding import split_by_rows

    def complete(batch: Batch) -> list[dict[str, Any]]:
        made = generator.complete(batch, rows)
        if request.options.get("logits"):
            _write_logits(
                reader, made, file.path.with_name(f"{file.path.name.removesuffix('.jsonl')}.logits")
            )
        return [each.to_row() for each in made]

    def score(batch: Batch) -> list[dict[str, Any]]:
        picked = [rows[row] for row, _ in batch]
        known = [{key: row[key] for key in SCORED_COLUMNS if key in row} for row in picked]
        made = list(zip(batch, known, reader.score(picked), strict=True))
        bar.update(len(batch))
        return [
            {"row": number, **row, "score": round(value, 6)} for (number, _), row, value in made
        ]

    if request.head == "score":
        reader, total = AnswerReader(model, tokenizer, context_length(model)), len(rows)
        groups = split_by_rows([len(str(row)) for row in rows], request.options["batch_size"])
        answer, unit, batches = score, "answer", [[(row, 0) for row in group] for group in groups]
    else:
        reader, generator = (
            AnswerReader(model, tokenizer),
            request.build_generator(model, tokenizer),
        )
        answer, unit, batches, total = (
            complete,
            "completion",
            generator.plan(rows),
            len(rows) * generator.n,
        )
        generator.on_progress = lambda count: bar.update(count)
    with progress_bar("predicting", total, unit) as bar:
        return total - bar.n if file.complete(batches, answer) else 0


def _write_logits(reader: AnswerReader, made: Sequence[Completion], folder: Path) -> None:
    """Write of each completion the logits [T, V] before its tokens, float32 at temperature 1, and its ``token_ids``."""
    import torch
    from safetensors.torch import save

    for index, logits_TV in reader.read_logits(
        [[*each.prompt_ids, *each.token_ids] for each in made]
    ):
        each = made[index]
        logits_TV = (
            logits_TV[len(each.prompt_ids) - 1 :][: len(each.token_ids)].float().cpu().contiguous()
        )
        content = save({"logits": logits_TV, "token_ids": torch.tensor(each.token_ids)})
        write_bytes(folder / f"{each.row}-{each.sample}.safetensors", content)


def answer_prompt(request: InferenceRequest) -> int:
    """Print what the model writes after one prompt, or the score that it gives to an answer, and nothing else."""
    from runner.generate.answer_reader import AnswerReader

    with quiet():
        model, tokenizer, chats = _load(request)
        row: dict[str, Any] = {
            key: request.options[key] for key in ("prompt", "completion") if key in request.options
        }
        if chats:
            roles = {"prompt": "user", "completion": "assistant"}
            row = {key: [{"role": roles[key], "content": text}] for key, text in row.items()}
        if request.head == "score":
            answers = [f"{AnswerReader(model, tokenizer).score([row])[0]:.6f}"]
        else:
            answers = [
                each.text for each in request.build_generator(model, tokenizer).complete_all([row])
            ]
    print_answer("\n".join(answers))
    return 0
