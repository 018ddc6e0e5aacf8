"""python -m runner predict RUN [dataset=... | file=... | prompt="..." | chat=true] [key=value ...]

Has a trained model answer: with the run's own template and stop tokens, in batches of prompts of like length. Rows go
to <run>/predictions/<rows>-<key>.jsonl, a line for each completion in the order of the rows, with row, sample,
prompt, completion, finish (stop or length), log_probability and tokens. The log-probability is the sum over the
completion's tokens under the model at temperature 1, however they were drawn. The same command again continues what
was interrupted, with the same result. A reward model gives a score for each known answer instead.

    dataset=toy_sort      other rows than the run's held-out ones: any option or key of the dataset group
    file=rows.jsonl       a file of rows, short for dataset=local dataset.path=rows.jsonl
    set=eval              train, eval, or the name of one held-out set
    limit=100             the first rows only
    prompt="..."          one prompt; the completion is printed, and nothing else goes to the standard output
    completion="..."      with a prompt for a reward model: prints the score of this answer
    as=text               continue the prompt as it stands; as=chat opens a turn of the chat template. The default is
                          what the run's own samples were, else chat where the tokenizer has a template
    chat=true             a conversation, a line for each turn; /reset forgets it, /exit or Ctrl-D ends it
    checkpoint=last       model, best, last, a step, or start (the model before training); the default is the model of
                          a finished run, else the best or newest sealed checkpoint
    batch_size=32         prompts side by side; half as many where memory does not suffice
    max_new_tokens=64     the default is the length that the run trained with, else 64
    temperature=1         0 is greedy; the default is 0 for one completion and 1 for several
    top_k=0 top_p=1       leave out all but the likeliest tokens
    n=4                   completions for each prompt
    seed=0                each completion's random numbers come from seed, row and sample alone
    to=file.jsonl         another place
    output_root=outputs   where names and keys of runs are looked up

Without a RUN, any model: predict model=hub model.path=org/name dataset=..., with head=score for a reward model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command._request import OPTIONS, InferenceRequest, Option, in_a_name, read_request
from runner.errors import ConfigError, Fault
from runner.generate.prediction import PredictionFile, file_states, prediction_key
from runner.generate.rows import find_form_fault
from runner.generate.weights import Weights, find_weights
from runner.io.files import display_path, read_last_row
from runner.io.terminal import progress_bar, quiet, sample_lines
from runner.report.number import number
from runner.run.read import SAMPLE_FILES
from runner.training.trained import load_trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.completion import TextGenerator
    from runner.generate.rows import Rows
    from runner.generate.sampler import Model

OWN = OPTIONS | {"prompt": Option(), "completion": Option(), "chat": Option("bool")}
PARTS = ("model", "dataset", "quant")
SHOWN_COMPLETIONS = 3


def main(line: Any) -> int:
    """Answer what the command line asks, and return 0 when all of it is written."""
    request = read_request(line, "predict", OWN, PARTS)
    weights = find_weights(request.run, request.options.get("checkpoint"))
    _check(request)
    if "prompt" in request.options:
        return answer_prompt(request, weights)
    if request.options.get("chat"):
        return converse(request, weights)
    return predict(request, weights)


def _check(request: InferenceRequest) -> None:
    """Raise ConfigError for options that do not go together, before anything loads."""
    options, head, faults = request.options, request.head, []
    ways = [key for key in ("prompt", "chat") if options.get(key)]
    if len(ways) > 1 or (ways and ("dataset" in request.chosen or "file" in options)):
        found = " and ".join([*ways, *(["rows"] if "dataset" in request.chosen else [])])
        faults.append(Fault(ways[0], found, "one of prompt, chat, and rows", "leave the others out"))
    if head == "score" and options.get("chat"):
        faults.append(Fault("chat", "true, and a reward model writes nothing", "a language model", "dataset=<rows>"))
    if head == "score" and "prompt" in options and "completion" not in options:
        found = "no answer to it, and a reward model scores answers"
        faults.append(Fault("prompt", found, "an answer, too", 'completion="<text>"'))
    if head == "lm" and "completion" in options:
        faults.append(Fault("completion", "set, and a language model writes it", "none", "leave it out"))
    if not ways and head == "lm" and (fault := find_form_fault(request.cfg["dataset"], "prompt", "dataset")):
        faults.append(fault)
    if faults:
        raise ConfigError(faults)


def _load(
    request: InferenceRequest, weights: Weights, *, chats: bool | None = None
) -> tuple[Model, PreTrainedTokenizerBase, bool]:
    """Model and tokenizer, and whether a typed prompt is a turn of a chat, unless ``chats`` says so already."""
    from runner.model.chat import check_template

    model, tokenizer = load_trained(request.cfg, weights, request.head)
    chats = _is_chat(request, tokenizer) if chats is None else chats
    check_template(tokenizer, chats=chats)
    return model, tokenizer, chats


def _temperature(request: InferenceRequest) -> float:
    return 1.0 if request.options.get("n", 1) > 1 else 0.0


# --- A file of rows -------------------------------------------------------------------------------


def predict(request: InferenceRequest, weights: Weights) -> int:
    """Answer every row that is asked for, and put the answers into a file."""
    facts = _facts(request, weights)
    key = prediction_key(facts)
    file = PredictionFile(_path(request, weights, key), key)
    if file.is_finished():
        print(f"finished  {display_path(file.path)} already; nothing was changed")
        return 0
    print(f"model     {request.name}{'' if weights.folder is None else f' ({weights.name})'}", flush=True)
    with file.lock(), quiet():
        began, scores = time.monotonic(), request.head == "score"
        # The rows first, because what is wrong with them shows at once.
        sets = request.read_sets("answer" if scores else "prompt")
        if len(sets) > 1:
            raise ConfigError(Fault("set", f"{len(sets)} sets", f"one of {', '.join(sets)}", f"set={next(iter(sets))}"))
        ((which, rows),) = sets.items()
        model, tokenizer, _ = _load(request, weights, chats=isinstance(rows[0].get("prompt"), list))
        print(f"rows      {len(rows)} of {request.data}, {which}", flush=True)
        again = (_write_scores if scores else _write_completions)(request, model, tokenizer, rows, file)
    made = file.finish({"asked": request.name, "rows_of": which} | facts)
    print("\n".join(_closing(made, again, time.monotonic() - began)))
    print(f"to        {display_path(file.path)}")
    return 0


def _facts(request: InferenceRequest, weights: Weights) -> dict[str, Any]:
    """Everything on which predictions depend."""
    parts = {name: request.cfg.get(name) for name in PARTS}
    own = {name: request.options.get(name) for name in ("limit", "set", "n")}
    files = {name: file_states(request.cfg[name]) for name in ("model", "dataset")}
    how = {"weights": [weights.name, weights.seal], "head": request.head}
    return parts | own | {"files": files} | how | {"sampling": request.sampling(_temperature(request))}


def _path(request: InferenceRequest, weights: Weights, key: str) -> Path:
    if "to" in request.options:
        return Path(request.options["to"])
    checkpoint = "" if weights.name == "model" else weights.name
    words = [request.data, in_a_name(request.options.get("set", "")), checkpoint, key]
    return request.folder("predictions") / f"{'-'.join(filter(None, words))}.jsonl"


def _write_completions(
    request: InferenceRequest, model: Model, tokenizer: PreTrainedTokenizerBase, rows: Rows, file: PredictionFile
) -> int:
    """Append what the model writes to the file; returns how many completions were there already."""
    generator = request.build_generator(model, tokenizer, _temperature(request))
    batches, total = generator.plan(rows), len(rows) * generator.n
    with progress_bar("predicting", total, "completion") as bar:
        generator.on_progress = bar.update
        skipped = file.complete(batches, lambda batch: [each.to_row() for each in generator.complete(batch, rows)])
        return total - bar.n if skipped else 0


def _write_scores(
    request: InferenceRequest, model: Model, tokenizer: PreTrainedTokenizerBase, rows: Rows, file: PredictionFile
) -> int:
    """Append the score of each answer to the file; returns how many were there already."""
    from runner.generate.batch import split_by_rows
    from runner.generate.completion import GenerationRequest, context_length
    from runner.generate.likelihood import score_answers

    columns = ("prompt", "completion", "text", "label")
    groups = split_by_rows([len(str(row)) for row in rows], request.batch_size)
    with progress_bar("predicting", len(rows), "answer") as bar:

        def score(batch: Sequence[GenerationRequest]) -> list[dict[str, Any]]:
            picked = [rows[each.row] for each in batch]
            scores = score_answers(model, tokenizer, picked, max_length=context_length(model))
            bar.update(len(batch))
            known = [{key: row[key] for key in columns if key in row} for row in picked]
            made = zip(batch, known, scores, strict=True)
            return [{"row": each.row, **row, "score": round(value, 6)} for each, row, value in made]

        skipped = file.complete([[GenerationRequest((), row) for row in group] for group in groups], score)
        return len(rows) - bar.n if skipped else 0


def _closing(made: Sequence[dict[str, Any]], again: int, seconds: float) -> Iterator[str]:
    """The summary of what was made, and the first of it."""
    kept = f", {again} of them from before" if again else ""
    if made and "score" in made[0]:
        mean = sum(row["score"] for row in made) / len(made)
        yield f"wrote     {len(made)} scores{kept}, {number(mean)} on average, in {number(seconds, 2)} s"
        return
    stopped, tokens = sum(row["finish"] == "stop" for row in made), sum(row["tokens"] for row in made)
    told = f"{stopped} ended by themselves, {number(tokens / len(made), 3)} tokens each"
    yield f"wrote     {len(made)} completions{kept}, {told}, in {number(seconds, 2)} s"
    yield from sample_lines((row["prompt"], row["completion"]) for row in made[:SHOWN_COMPLETIONS])


# --- One prompt, and a conversation ---------------------------------------------------------------


def answer_prompt(request: InferenceRequest, weights: Weights) -> int:
    """Print what the model says to one prompt, or the score that it gives to an answer, and nothing else."""
    from runner.generate.likelihood import score_answers

    with quiet():
        model, tokenizer, chats = _load(request, weights)
        row: dict[str, Any] = {key: request.options[key] for key in ("prompt", "completion") if key in request.options}
        if chats:
            roles = {"prompt": "user", "completion": "assistant"}
            row = {key: [{"role": roles[key], "content": text}] for key, text in row.items()}
        if request.head == "score":
            said = [f"{score_answers(model, tokenizer, [row])[0]:.6f}"]
        else:
            generator = request.build_generator(model, tokenizer, _temperature(request))
            said = [each.text for each in generator.complete_all([row])]
    print("\n".join(said), flush=True)
    return 0


def _is_chat(request: InferenceRequest, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Tell whether a typed prompt is a turn of a chat: as told, as the run's own samples, or as the tokenizer can."""
    if "as" in request.options:
        return request.options["as"] == "chat"
    files = [request.run.folder / name for name in ("samples.jsonl", *SAMPLE_FILES)] if request.run else []
    seen = next(filter(None, map(read_last_row, files)), {})
    return bool(tokenizer.chat_template) and not isinstance(seen.get("prompt"), str)


def converse(request: InferenceRequest, weights: Weights) -> int:
    """Answer the lines of the standard input, each with those before it, until it ends or says /exit."""
    with quiet():
        model, tokenizer, _ = _load(request, weights, chats=True)
        generator, turns = request.build_generator(model, tokenizer, _temperature(request)), []
        for count, said in enumerate(_lines()):
            if said == "/reset":
                turns = []
                continue
            turns = _forget(generator, [*turns, {"role": "user", "content": said}])
            turns.append({"role": "assistant", "content": _reply(generator, turns, count)})
    return 0


def _lines() -> Iterator[str]:
    """The lines that are typed, or come through a pipe, without empty lines; the mark is only for people."""
    people = sys.stdin.isatty()
    if people:
        import readline  # noqa: F401  gives input() a history
    while True:
        try:
            said = input("> ") if people else next(sys.stdin).rstrip("\n")
        except (EOFError, StopIteration):
            return
        if said.strip() == "/exit":
            return
        if said.strip():
            yield said.strip() if said.startswith("/") else said


def _forget(generator: TextGenerator, turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns without the oldest ones, where the model cannot hold them all and an answer."""
    from runner.model.spelling import spell_prompt

    room, count = generator.how.max_length, generator.how.max_new_tokens
    while room and len(turns) > 1 and len(spell_prompt(generator.tokenizer, turns, {})) + count > room:
        turns = turns[2:]
        print(f"(the first turns are forgotten: the model holds {room} tokens)", file=sys.stderr)
    return turns


def _reply(generator: TextGenerator, turns: list[dict[str, str]], count: int) -> str:
    """The model's answer to the turns, printed as it is written; ``count`` numbers its random numbers."""
    printed = ""

    def on_token(tokens: list[int]) -> None:
        nonlocal printed
        text = generator.to_text(tokens)
        if not text.endswith("\ufffd"):  # a character whose last bytes are still to come
            print(text[len(printed) :], end="", flush=True)
            printed = text

    rows = [{"prompt": turns}]
    ((asked, *_),) = generator.plan(rows)
    answer, *_ = generator.complete([replace(asked, sample=count)], rows, on_token)
    print(answer.text[len(printed) :], flush=True)
    return answer.text
