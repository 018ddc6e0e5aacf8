"""The answer of ``predict`` to one prompt, which is printed."""

from typing import Any

from runner.command._inference import InferenceRequest
from runner.command._prompt_style import is_chat_model
from runner.command.predict_options import Options
from runner.io.temporary import uncollected
from runner.io.terminal import print_answer, quiet

Request = InferenceRequest[Options]
ROLES = {"prompt": "user", "completion": "assistant"}


def answer_prompt(request: Request) -> int:
    """Print what the model writes after a prompt, or the score of an answer, and nothing else."""
    options = request.options
    # What is imported and loaded here stays to the end.
    with quiet(), uncollected():
        from runner.model.chat import check_template
        from runner.training.components.trained_model import load_trained

        model, tokenizer = load_trained(request.experiment, request.weights, request.head)
        is_chat = is_chat_model(request.run, tokenizer, request.options.style)
        check_template(tokenizer, chats=is_chat)
        row: dict[str, Any] = {"prompt": options.prompt}
        if options.completion is not None:
            row["completion"] = options.completion
        if is_chat:
            for key, text in list(row.items()):
                row[key] = [{"role": ROLES[key], "content": text}]
        if request.head == "score":
            from runner.generate.answer_reader import AnswerReader

            (score,) = AnswerReader(model, tokenizer).score([row])
            answers = [f"{score:.6f}"]
        else:
            completions = request.build_generator(model, tokenizer).complete_all([row])
            answers = [completion.text for completion in completions]
    print_answer("\n".join(answers))
    return 0
