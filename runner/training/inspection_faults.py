"""Silent faults that no training may start with, found in the rows that its trainer sees.

No token is trained, no end is trained, the begin token is doubled, rows are cut, or generation has
another template.
"""

import contextlib
import math
from collections.abc import Callable

from transformers import GenerationConfig, PreTrainedModel

from runner.config.experiment import Experiment, Tolerate
from runner.errors import Fault
from runner.io.files import shipped
from runner.model.encoding import decode, shared_length, stop_ids
from runner.model.load import read_adapter
from runner.schema.literal import to_list
from runner.training.inspection import Inspection, trained_ids

SHOWN_CHARACTERS = 60  # of a text in a fault
SHOWN_TOKENS = 20


def find_faults(inspection: Inspection, tolerate: Tolerate | None = None) -> list[Fault]:
    """Faults that no training may start with; ``tolerate`` of the configuration may allow them."""
    tolerate = tolerate or Tolerate()
    faults = []
    count = len(inspection.encoded)
    longest = inspection.longest_cut
    if not inspection.rows:
        faults.append(
            Fault(
                where="dataset",
                found=f"no row is left of {count}: the trainer leaves out all of them",
                expected="rows that fit",
                fix=f"trainer.args.max_length={longest}" if longest else "another dataset",
            )
        )
    allowed = tolerate.truncated
    cut = len(inspection.cut)
    if cut > allowed * count:
        share = cut / count
        enough = min(1.0, math.ceil(share * 100 / 5) * 0.05)
        faults.append(
            Fault(
                where="trainer.args.max_length",
                found=f"{inspection.limit}: {share:.0%} of {count} rows are longer, and would be "
                f"cut or left out; the longest has {longest} tokens",
                expected=f"at most {allowed:.0%} of the rows",
                fix=f"={longest}, or tolerate.truncated={enough:.2g}",
            )
        )
    for name, check in CHECKS.items():
        if not getattr(tolerate, name):
            fault = check(inspection)
            if fault is not None:
                faults.append(fault)
    return faults


def find_nothing_trained(inspection: Inspection) -> Fault | None:
    """The fault of rows in which no token is trained."""
    if inspection.goal == "prompt" or inspection.trained or not inspection.rows:
        return None
    fix = "collator=none"
    if inspection.answers_only:
        fix = "trainer.args.assistant_only_loss=false weight=answers"
    elif inspection.cut:
        fix = f"trainer.args.max_length={inspection.longest_cut}"
    return Fault(
        where="trainer",
        found=f"no token of {len(inspection.rows)} texts is trained: the loss would be 0",
        expected="labels on what the model is to learn",
        fix=f"{fix}, or tolerate.nothing_trained=true",
    )


def find_no_end(inspection: Inspection) -> Fault | None:
    """The fault of rows in which no end token is trained, so that no generation would stop.

    The fix is a pad token of its own, the mark that the rows end with, or another template.
    """
    whole = []
    for row in inspection.rows:
        if any(row.trained) and not row.whole and row.role != "rejected":
            whole.append(row)
    if inspection.goal != "tokens" or not whole or inspection.ended:
        return None
    tokenizer = inspection.tokenizer
    first = whole[0]
    trained = trained_ids(first)
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    marks = [token for token in trained[-3:] if token in special]
    pads_with_end = tokenizer.pad_token_id == tokenizer.eos_token_id
    if pads_with_end and tokenizer.eos_token_id in first.ids:
        fix = "model.tokenizer.pad_token=<another token>, because the collator hides padding;"
    elif marks:
        fix = f"model.tokenizer.eos_token='{decode(tokenizer, marks[-1:])}',"
    else:
        fix = "model.tokenizer.chat_template=plain,"
    ends = ", ".join(sorted(decode(tokenizer, [end]) for end in inspection.ends))
    tail = decode(tokenizer, trained[-4:])
    return Fault(
        where="model.tokenizer.eos_token",
        found=f"{ends}: no row trains it; what is trained ends with {tail!r}, so the model would "
        "not learn to stop",
        expected="an end in every answer",
        fix=f"{fix} or tolerate.no_end=true",
    )


def find_doubled_bos(inspection: Inspection) -> Fault | None:
    """The fault of rows that begin with two begin tokens."""
    bos = inspection.tokenizer.bos_token_id
    doubled = [row for row in inspection.rows if row.ids[:2] == [bos, bos]]
    if bos is None or not doubled:
        return None
    begin = decode(inspection.tokenizer, [bos, bos])
    return Fault(
        where="model.tokenizer",
        found=f"{len(doubled)} of {len(inspection.rows)} rows begin with {begin!r}",
        expected="one begin token",
        fix="a template or rows without it, because the tokenizer sets one itself; or "
        "tolerate.doubled_bos=true",
    )


def find_other_template(inspection: Inspection) -> Fault | None:
    """The fault of answers that are trained after another prompt than generation gives.

    It quotes the row that agrees longest with the first such prompt, from where they differ.
    """
    prompts = inspection.prompt_mismatches
    if not prompts:
        return None
    prompt = prompts[0]
    shared = -1
    rest = list[int]()
    for row in inspection.rows:
        ids = inspection.without_bos(row.ids)
        length = shared_length(prompt, ids)
        if length > shared:
            shared = length
            rest = ids[length : length + SHOWN_TOKENS]
    tokenizer = inspection.tokenizer
    before = decode(tokenizer, prompt[:shared])[-SHOWN_CHARACTERS:]
    in_rows = decode(tokenizer, rest)[:SHOWN_CHARACTERS]
    in_generation = decode(tokenizer, prompt[shared:])[:SHOWN_CHARACTERS]
    count = _count_prompts(inspection)
    return Fault(
        where="model.tokenizer.chat_template",
        found=f"{len(prompts)} of {count} answers are trained after a prompt that differs from "
        f"that of generation: after {before!r} the rows continue with {in_rows!r}, generation "
        f"with {in_generation!r}",
        expected="one template for both",
        fix="=<one that spells both alike, such as chatml>, or tolerate.other_template=true",
    )


def _count_prompts(inspection: Inspection) -> int:
    return sum(len(row.prompts) for row in inspection.encoded)


# By the name that ``tolerate`` takes; ``config.experiment.Tolerate`` declares these names too.
CHECKS: dict[str, Callable[[Inspection], Fault | None]] = {
    "nothing_trained": find_nothing_trained,
    "no_end": find_no_end,
    "doubled_bos": find_doubled_bos,
    "other_template": find_other_template,
}


def find_notes(inspection: Inspection) -> list[str]:
    """Lines on what a training may well be meant to do, and most often is not."""
    count = len(inspection.encoded)
    notes = []
    for column, blank in inspection.blank.items():
        notes.append(f"dataset: {blank} of {count} rows have an empty {column} answer")
    trains_all = all(all(row.trained) and not row.weights for row in inspection.rows)
    if inspection.goal == "tokens" and inspection.chats and trains_all:
        has_media = any(row.media for row in inspection.rows)
        words = "trainer.args.assistant_only_loss=true" if has_media else "weight=answers"
        notes.append(
            f"dataset: every token of {inspection.chats} conversations is trained, also the "
            f"questions; {words} trains only what the assistant says"
        )
    if inspection.glued:
        notes.append(
            f"dataset: in {inspection.glued} of {count} rows, prompt and answer are joined "
            "without a blank; dataset.columns.input=prompt "
            "dataset.columns.target=completion turns them into a chat"
        )
    return notes


def ends_of(experiment: Experiment, model: PreTrainedModel) -> list[int]:
    """The tokens that stop the generation of the real model.

    Its generation settings are a small file beside its weights; a model without a path is new, and
    is the given one itself.
    """
    path = experiment.model.path
    revision = experiment.model.revision
    if not path:
        return stop_ids(model)
    adapter = read_adapter(path, revision)
    if adapter:
        path = adapter.base_model_name_or_path
        revision = adapter.revision
    with contextlib.suppress(OSError):  # a model without such a file stops at the tokenizer's end
        settings = GenerationConfig.from_pretrained(shipped(path), revision=revision or "main")
        ends: list[int] | int | None = settings.eos_token_id
        if ends is None:
            return []
        return to_list(ends)
    return []


def summary_of(inspection: Inspection) -> list[str]:
    """The figures of all rows that were looked at, not only of those that are shown."""
    rows = inspection.rows
    longest = max((len(row.ids) for row in rows), default=0)
    numbers = {row.number for row in rows}
    lines = [f"{len(numbers)} rows looked at, the longest of {longest} tokens"]
    if inspection.limit:
        cut = f"{len(inspection.cut)} of {len(inspection.encoded)} rows"
        lines.append(f"{cut} are longer than max_length={inspection.limit}")
    if inspection.goal == "prompt":
        lines.append("completions are sampled after these prompts, and only they are trained")
        return lines
    if inspection.goal == "score":
        lines.append("one score for each text")
        return lines
    tokens = sum(len(row.ids) for row in rows)
    share = inspection.trained / max(1, tokens)
    lines.append(f"{inspection.trained} of {tokens} tokens are trained ({share:.1%})")
    lines.append(f"an end token is trained in {len(inspection.ended)} of {len(rows)} texts")
    prompts = _count_prompts(inspection)
    if prompts and inspection.comparable:
        right = prompts - len(inspection.prompt_mismatches)
        lines.append(f"{right} of {prompts} answers follow the prompt that generation uses")
    return lines + find_notes(inspection)
