"""Has a trained model answer rows or a prompt."""

from collections.abc import Iterator

from runner.command import CommandLine
from runner.command._answers import PARTS, predict
from runner.command._inference import InferenceRequest
from runner.command._prompt_answer import answer_prompt
from runner.command._request import read_request
from runner.command.predict_options import Options
from runner.config.override import dotted_key
from runner.errors import ConfigError, Fault
from runner.generate.held_out_rows import find_prompt_fault
from runner.schema.text import to_override

# Keys of which one is typed where callbacks are to hear of a prediction.
ASK_CALLBACKS = {"callback", "allow"}


def main(line: CommandLine) -> int:
    """Answer what the command line names, and return 0 when all of it is written."""
    text = " ".join(line.runs[1:])
    if text:
        raise ConfigError(
            Fault(
                where="command line",
                found=repr(text),
                expected="one run; what it should answer has a key",
                fix=f"python -m runner predict {line.runs[0]} {to_override('prompt', text)}",
            )
        )
    typed = {dotted_key(word).partition(".")[0] for word in line.overrides}
    asks_callbacks = bool(typed & ASK_CALLBACKS)
    parts = (*PARTS, "callback") if asks_callbacks else PARTS
    request = read_request(line, Options, parts)
    ConfigError.refuse(find_faults(request))
    if request.options.prompt is not None:
        return answer_prompt(request)
    return predict(request, request.experiment.callbacks if asks_callbacks else {})


def find_faults(request: InferenceRequest[Options]) -> Iterator[Fault]:
    """The faults of options that do not go together, or not with the head of the model."""
    options = request.options
    is_scorer = request.head == "score"
    has_prompt = options.prompt is not None
    has_rows = "dataset" in request.chosen or options.file is not None
    if has_prompt and has_rows:
        yield Fault(
            where="prompt",
            found="prompt and rows",
            expected="one of them",
            fix="leave the other out",
        )
    if is_scorer and has_prompt and options.completion is None:
        yield Fault(
            where="prompt",
            found="no answer to it, but a reward model scores answers",
            expected="an answer, too",
            fix='completion="<text>"',
        )
    if not is_scorer and options.completion is not None:
        yield Fault(
            where="completion",
            found="set, but a language model writes it itself",
            expected="none",
            fix="leave it out",
        )
    if options.logits and (has_prompt or is_scorer):
        found = "true together with prompt"
        if is_scorer:
            found = "true, but a reward model's score is its logit"
        yield Fault(
            where="logits",
            found=found,
            expected="rows that a language model answers",
            fix="leave it out",
        )
    if not is_scorer and not has_prompt:
        fault = find_prompt_fault(request.experiment.dataset.node, "dataset")
        if fault:
            yield fault
