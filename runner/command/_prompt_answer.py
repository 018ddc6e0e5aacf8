"""The answer of ``predict`` to one prompt, which is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.command._inference import InferenceRequest
from runner.command.predict_options import Options
from runner.io.files import read_last_row
from runner.io.terminal import print_answer, quiet
from runner.run.history import SAMPLE_FILES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Request = InferenceRequest[Options]
ROLES = {"prompt": "user", "completion": "assistant"}


def answer_prompt(request: Request) -> int:
    """Print what the model writes after a prompt, or the score of an answer, and nothing else."""
    from runner.generate.answer_reader import AnswerReader
    from runner.model.chat import check_template
    from runner.training.components.trained_model import load_trained

    options = request.options
    with quiet():
        model, tokenizer = load_trained(request.experiment, request.weights, request.head)
        is_chat = _is_chat(request, tokenizer)
        check_template(tokenizer, chats=is_chat)
        row: dict[str, Any] = {"prompt": options.prompt}
        if options.completion is not None:
            row["completion"] = options.completion
        if is_chat:
            row = {key: [{"role": ROLES[key], "content": text}] for key, text in row.items()}
        if request.head == "score":
            (score,) = AnswerReader(model, tokenizer).score([row])
            answers = [f"{score:.6f}"]
        else:
            completions = request.build_generator(model, tokenizer).complete_all([row])
            answers = [completion.text for completion in completions]
    print_answer("\n".join(answers))
    return 0


def _is_chat(request: Request, tokenizer: PreTrainedTokenizerBase) -> bool:
    """True where the prompt is a turn of a chat, as it was in the samples of the run."""
    if request.options.style is not None:
        return request.options.style == "chat"
    if not tokenizer.chat_template:
        return False
    if request.run:
        for name in ("samples.jsonl", *SAMPLE_FILES):
            sample = read_last_row(request.run.folder / name)
            if sample:
                return not isinstance(sample.get("prompt"), str)
    return True
