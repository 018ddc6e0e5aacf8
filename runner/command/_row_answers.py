"""The completions or scores for the rows of a prediction, batch by batch into its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command._inference import InferenceRequest
from runner.command.predict_options import Options
from runner.generate.held_out_rows import Rows
from runner.generate.prediction import Batch, PredictionFile
from runner.io.files import write_bytes
from runner.io.terminal import progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.answer_reader import AnswerReader
    from runner.generate.completion import Completion
    from runner.generate.sampler import Model

Request = InferenceRequest[Options]
SCORED_COLUMNS = ("prompt", "completion", "text", "label")


def write_scores(
    request: Request,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    file: PredictionFile,
) -> int:
    """Score the rows as far as the file lacks them; the number that were there already."""
    from runner.generate.answer_reader import AnswerReader
    from runner.generate.completion import context_length
    from runner.generate.padding import split_by_rows

    reader = AnswerReader(model, tokenizer, context_length(model))
    lengths = [len(str(row)) for row in rows]
    groups = split_by_rows(lengths, request.options.batch_size)
    batches: list[Batch] = []
    for group in groups:
        batches.append([(index, 0) for index in group])

    with progress_bar("predicting", len(rows), "answer") as bar:

        def score(batch: Batch) -> list[dict[str, Any]]:
            picked = [rows[index] for index, _ in batch]
            values = reader.score(picked)
            scored = []
            for (index, _), row, value in zip(batch, picked, values, strict=True):
                columns = {key: row[key] for key in SCORED_COLUMNS if key in row}
                scored.append({"row": index, **columns, "score": round(value, 6)})
            bar.update(len(batch))
            return scored

        old_batches = file.complete(batches, score)
        # The bar counts only what is new, so that the others were there.
        return len(rows) - bar.n if old_batches else 0


def write_completions(
    request: Request,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    file: PredictionFile,
) -> int:
    """Complete the rows as far as the file lacks them; the number that were there already."""
    from runner.generate.answer_reader import AnswerReader

    reader = AnswerReader(model, tokenizer)
    generator = request.build_generator(model, tokenizer)
    base_name = file.path.name.removesuffix(".jsonl")
    logits_folder = file.path.with_name(f"{base_name}.logits")
    total = len(rows) * generator.n

    def complete(batch: Batch) -> list[dict[str, Any]]:
        completions = generator.complete(batch, rows)
        if request.options.logits:
            _write_logits(reader, completions, logits_folder)
        return [completion.to_row() for completion in completions]

    batches = generator.plan(rows)
    with progress_bar("predicting", total, "completion") as bar:
        generator.on_progress = bar.update
        old_batches = file.complete(batches, complete)
        # The bar counts only what is new, so that the others were there.
        return total - bar.n if old_batches else 0


def _write_logits(reader: AnswerReader, completions: Sequence[Completion], folder: Path) -> None:
    """Write for each completion the logits [T, V] before its tokens, and its ``token_ids``.

    The logits are float32 and at temperature 1.
    """
    import torch
    from safetensors.torch import save

    sequences = [[*completion.prompt_ids, *completion.token_ids] for completion in completions]
    for index, logits_TV in reader.read_logits(sequences):
        completion = completions[index]
        # The logits of a position are of the token after it.
        start = len(completion.prompt_ids) - 1
        end = start + len(completion.token_ids)
        logits_TV = logits_TV[start:end]
        tensors = {
            "logits": logits_TV.float().cpu().contiguous(),
            "token_ids": torch.tensor(completion.token_ids),
        }
        name = f"{completion.row}-{completion.sample}.safetensors"
        write_bytes(folder / name, save(tensors))
