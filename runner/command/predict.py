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
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, Fault
from runner.files import display_path, read_last_row
from runner.inference.paper import Paper, continued, key_of, state_of
from runner.inference.rows import find_form_fault, read_sets
from runner.inference.weights import Weights, find_weights, load
from runner.inference.words import OPTIONS, Asked, Kind, in_a_name, read_asked
from runner.report.number import number
from runner.run.read import SAMPLE_FILES
from runner.terminal import progress_bar, quiet, sample_lines

OWN = OPTIONS | {"prompt": Kind(), "completion": Kind(), "chat": Kind(bool, example="true")}
PARTS = ("model", "dataset", "quant")
SHOWN = 3  # completions on the terminal


def main(line: Any) -> int:
    """Answer what the command line asks, and return 0 when all of it is written."""
    asked = read_asked(line, "predict", OWN, PARTS)
    weights = find_weights(asked.run, asked.options.get("checkpoint"))
    _check(asked)
    if "prompt" in asked.options:
        return answer_prompt(asked, weights)
    if asked.options.get("chat"):
        return converse(asked, weights)
    return predict(asked, weights)


def _check(asked: Asked) -> None:
    """Raise ConfigError for options that do not go together, before anything loads."""
    options, faults = asked.options, []
    ways = [key for key in ("prompt", "chat") if options.get(key)]
    if len(ways) > 1 or (ways and ("dataset" in asked.chosen or "file" in options)):
        found = " and ".join([*ways, *(["rows"] if "dataset" in asked.chosen else [])])
        faults.append(Fault(ways[0], found, "one of prompt, chat, and rows", "leave the others out"))
    if asked.head == "score" and options.get("chat"):
        faults.append(Fault("chat", "true, and a reward model writes nothing", "a language model", "dataset=<rows>"))
    if asked.head == "score" and "prompt" in options and "completion" not in options:
        found = "no answer to it, and a reward model scores answers"
        faults.append(Fault("prompt", found, "an answer, too", 'completion="<text>"'))
    if asked.head == "lm" and "completion" in options:
        faults.append(Fault("completion", "set, and a language model writes it", "none", "leave it out"))
    if not ways and asked.head == "lm" and (fault := find_form_fault(asked, "prompt", "dataset")):
        faults.append(fault)
    if faults:
        raise ConfigError(faults)


# --- A file of rows -------------------------------------------------------------------------------


def predict(asked: Asked, weights: Weights) -> int:
    """Answer every row that is asked for, and put the answers into a file."""
    key = key_of(facts_of(asked, weights))
    paper = Paper(_place(asked, weights, key), key)
    if paper.is_finished():
        print(f"finished  {display_path(paper.path)} already; nothing was changed")
        return 0
    print(f"model     {asked.name}{'' if weights.folder is None else f' ({weights.name})'}", flush=True)
    with paper.held(), quiet():
        began, model, tokenizer, rows, which = time.monotonic(), *_loaded(asked, weights)
        print(f"rows      {len(rows)} of {asked.data}, {which}", flush=True)
        write = _write_scores if asked.head == "score" else _write_completions
        again = write(asked, model, tokenizer, rows, paper)
    made = paper.finish({"asked": asked.name, "rows_of": which} | facts_of(asked, weights))
    print("\n".join(_closing(made, again, time.monotonic() - began)))
    print(f"to        {display_path(paper.path)}")
    return 0


def facts_of(asked: Asked, weights: Weights) -> dict[str, Any]:
    """Everything on which predictions depend."""
    parts = {name: asked.cfg.get(name) for name in PARTS}
    own = {name: asked.options.get(name) for name in ("limit", "set", "n")}
    files = {name: state_of(asked.cfg[name]) for name in ("model", "dataset")}
    how = {"weights": [weights.name, weights.seal], "head": asked.head, "sampling": vars(_how(asked))}
    return parts | own | {"files": files} | how


def _place(asked: Asked, weights: Weights, key: str) -> Path:
    if "to" in asked.options:
        return Path(asked.options["to"])
    words = [asked.data, in_a_name(asked.options.get("set", "")), "" if weights.name == "model" else weights.name, key]
    return asked.folder("predictions") / f"{'-'.join(filter(None, words))}.jsonl"


def _how(asked: Asked) -> Any:
    """How completions are drawn, as words and the run say it; a plain holder until torch is there."""
    from types import SimpleNamespace

    options = asked.options
    return SimpleNamespace(
        max_new_tokens=asked.length,
        temperature=float(options.get("temperature", 1.0 if options.get("n", 1) > 1 else 0.0)),
        top_k=options.get("top_k", 0),
        top_p=float(options.get("top_p", 1.0)),
        seed=options.get("seed", 0),
    )


def _loaded(asked: Asked, weights: Weights) -> tuple[Any, Any, list[dict[str, Any]], str]:
    """Rows and model; the rows first, because what is wrong with them shows at once."""
    sets = read_sets(asked, "answer" if asked.head == "score" else "prompt")
    if len(sets) > 1:
        raise ConfigError(Fault("set", f"{len(sets)} sets", f"one of {', '.join(sets)}", f"set={next(iter(sets))}"))
    ((which, rows),) = sets.items()
    model, tokenizer = load(asked.cfg, weights, asked.head)
    _check_chats(tokenizer, isinstance(rows[0].get("prompt"), list))
    return model, tokenizer, rows, which


def _check_chats(tokenizer: Any, chats: bool) -> None:
    from runner.model.chat import check_template

    check_template(tokenizer, chats=chats)


def _write_completions(asked: Asked, model: Any, tokenizer: Any, rows: Sequence[Any], paper: Paper) -> int:
    """Add what the model writes to the paper; how many completions were there already."""
    answers = _answers(asked, model, tokenizer)
    batches = answers.plan(rows)
    with progress_bar("predicting", len(rows) * answers.n, "completion") as bar:
        answers.bar = bar.update
        skipped = continued(paper, batches, lambda batch: [each.paper for each in answers.draw(batch, rows)])
        again = len(rows) * answers.n - bar.n
    return again if skipped else 0


def _write_scores(asked: Asked, model: Any, tokenizer: Any, rows: Sequence[Any], paper: Paper) -> int:
    """Add the score of each answer to the paper; how many were there already."""
    from runner.model.answer import score_answers
    from runner.model.sample import Ask, in_batches, longest_text

    asks = [Ask(range(len(str(row))), number) for number, row in enumerate(rows)]
    with progress_bar("predicting", len(rows), "answer") as bar:

        def score(batch: Sequence[Ask]) -> list[dict[str, Any]]:
            picked = [rows[ask.row] for ask in batch]
            scores = score_answers(model, tokenizer, picked, max_length=longest_text(model))
            bar.update(len(batch))
            known = [
                {name: row[name] for name in ("prompt", "completion", "text", "label") if name in row} for row in picked
            ]
            pairs = zip(batch, known, scores, strict=True)
            return [{"row": ask.row, **row, "score": round(value, 6)} for ask, row, value in pairs]

        skipped = continued(paper, in_batches(asks, asked.options.get("batch_size", 32)), score)
        again = len(rows) - bar.n
    return again if skipped else 0


def _answers(asked: Asked, model: Any, tokenizer: Any) -> Any:
    from runner.inference.answer import BATCH, Answers
    from runner.model.sample import Sampling

    size, count = asked.options.get("batch_size", BATCH), asked.options.get("n", 1)
    return Answers(model, tokenizer, Sampling(**vars(_how(asked))), batch_size=size, n=count)


def _closing(made: Sequence[dict[str, Any]], again: int, seconds: float) -> Iterator[str]:
    """What came out, and the first of it."""
    kept = f", {again} of them from before" if again else ""
    if made and "score" in made[0]:
        mean = sum(row["score"] for row in made) / len(made)
        yield f"wrote     {len(made)} scores{kept}, {number(mean)} on average, in {number(seconds, 2)} s"
        return
    stopped, tokens = sum(row["finish"] == "stop" for row in made), sum(row["tokens"] for row in made)
    told = f"{stopped} ended by themselves, {number(tokens / len(made), 3)} tokens each"
    yield f"wrote     {len(made)} completions{kept}, {told}, in {number(seconds, 2)} s"
    yield from sample_lines((row["prompt"], row["completion"]) for row in made[:SHOWN])


# --- One prompt, and a conversation ---------------------------------------------------------------


def answer_prompt(asked: Asked, weights: Weights) -> int:
    """Print what the model says to one prompt, or the score that it gives to an answer, and nothing else."""

    with quiet():
        model, tokenizer = load(asked.cfg, weights, asked.head)
        chats = _as_chat(asked, tokenizer)
        _check_chats(tokenizer, chats)
        prompt: Any = asked.options["prompt"]
        prompt = [{"role": "user", "content": prompt}] if chats else prompt
        if asked.head == "score":
            said = [_score(model, tokenizer, prompt, asked.options["completion"])]
        else:
            said = [each.text for each in _answers(asked, model, tokenizer).all([{"prompt": prompt}])]
    print("\n".join(said), flush=True)
    return 0


def _score(model: Any, tokenizer: Any, prompt: Any, completion: str) -> str:
    from runner.model.answer import score_answers

    answer = [{"role": "assistant", "content": completion}] if isinstance(prompt, list) else completion
    return f"{score_answers(model, tokenizer, [{'prompt': prompt, 'completion': answer}])[0]:.6f}"


def _as_chat(asked: Asked, tokenizer: Any) -> bool:
    """Whether a typed prompt is a turn of a chat: as told, as the run's own samples were, or as the tokenizer can."""
    if "as" in asked.options:
        return asked.options["as"] == "chat"
    papers = [asked.run.folder / name for name in ("samples.jsonl", *SAMPLE_FILES)] if asked.run else []
    seen = next(filter(None, map(read_last_row, papers)), {})
    return bool(tokenizer.chat_template) and not isinstance(seen.get("prompt"), str)


def converse(asked: Asked, weights: Weights) -> int:
    """Answer the lines of the standard input, each with those before it, until it ends or says /exit."""

    with quiet():
        model, tokenizer = load(asked.cfg, weights, asked.head)
        _check_chats(tokenizer, True)
        answers, turns = _answers(asked, model, tokenizer), []
        for count, said in enumerate(_lines()):
            if said == "/reset":
                turns = []
                continue
            turns.append({"role": "user", "content": said})
            turns = _fitting(answers, turns)
            turns.append({"role": "assistant", "content": _reply(answers, turns, count)})
    return 0


def _lines() -> Iterator[str]:
    """What is typed, or comes through a pipe, without empty lines; the mark is only for people."""
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


def _fitting(answers: Any, turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns without the oldest ones, where the model cannot hold them all and an answer."""
    from runner.inspection import spell_prompt
    from runner.model.sample import longest_text

    room = longest_text(answers.model)
    while (
        room and len(turns) > 1 and len(spell_prompt(answers.tokenizer, turns, {})) + answers.how.max_new_tokens > room
    ):
        turns = turns[2:]
        print(f"(the first turns are forgotten: the model holds {room} tokens)", file=sys.stderr)
    return turns


def _reply(answers: Any, turns: list[dict[str, str]], count: int) -> str:
    """The model's answer to the turns, printed as it is written; ``count`` numbers its random numbers."""
    from runner.inspection import stop_ids
    from runner.model.sample import Ask, draw_batch

    told = ""

    def hear(tokens: list[int]) -> None:
        nonlocal told
        text = answers.tokenizer.decode(tokens, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # a character whose last bytes are still to come
            print(text[len(told) :], end="", flush=True)
            told = text

    (batch,) = answers.plan([{"prompt": turns}])
    ask = Ask(batch[0].ids, count, most=batch[0].most)
    (drawn,) = draw_batch(answers.model, [ask], answers.how, stop_ids(answers.model), hear)
    text = answers.text(drawn)
    print(text[len(told) :], flush=True)
    return text
