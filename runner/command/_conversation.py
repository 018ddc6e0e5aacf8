"""A conversation with a model: its turns, and each answer as it is written."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from runner.command._inference import ModelRequest
from runner.command._prompt_style import is_chat_model
from runner.command.chat_options import Options
from runner.errors import ConfigError, Fault
from runner.io.files import JsonObject
from runner.io.temporary import uncollected
from runner.io.terminal import quiet
from runner.io.turns import TurnDict, dialogue

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from runner.generate.agent import Agent
    from runner.generate.completion import TextGenerator
    from runner.model.encoding import TokenTexts

Request: TypeAlias = ModelRequest[Options]
# The end of an answer: by a stop token, at the most tokens, or by the user.
Finish: TypeAlias = Literal["stop", "length", "interrupted"]


@dataclass
class Conversation:
    """The turns that were exchanged with one model."""

    name: str  # of the model
    tokenizer: PreTrainedTokenizerBase
    is_chat: bool  # False: each text is continued as it stands
    show: Callable[[str], object]  # takes an answer piece by piece
    notes: dict[str, str] = field(default_factory=dict)  # on the model, by a short title
    system: str = ""
    turns: list[TurnDict] = field(default_factory=list)
    asked: int = 0  # questions so far, the forgotten ones too; from them comes the noise
    heard: str = ""  # of the answer that is being written

    def __post_init__(self) -> None:
        self.generator: TextGenerator
        self.pieces: TokenTexts
        self.special_ids = frozenset(self.tokenizer.all_special_ids)

    def answer(self, question: str) -> Finish:
        """Show the answer to a question, and keep both; Ctrl-C ends it and keeps what is written.

        Raises DataError for a question that does not fit into the context of the model.
        """
        from runner.model.encoding import TokenTexts

        prompt: Any = question
        asking = {"role": "user", "content": question}
        if self.is_chat:
            prompt = [*self._opening(), *self.turns, asking]
        row = {"prompt": prompt}
        self.generator.plan([row])
        self.pieces = TokenTexts(self.tokenizer)
        self.heard = ""
        finish: Any = "interrupted"
        answer: list[TurnDict] = []
        try:
            (completion,) = self.generator.complete([(0, self.asked)], [row])
            self._take(self.pieces.rest())
            finish = completion.finish
            answer = completion.turns or [{"role": "assistant", "content": completion.text}]
        except KeyboardInterrupt:
            if self.heard:
                answer = [{"role": "assistant", "content": self.heard}]
        self.asked += 1
        if answer:
            self.turns += [asking, *answer]
        ended: Finish = finish
        return ended

    def hear_tokens(self, token_B: Tensor) -> None:
        """Show the text of a further token."""
        token = int(token_B[0])
        if token not in self.special_ids:
            self._take(self.pieces.add(token))

    def hear_turn(self, turn: TurnDict) -> None:
        """Show a whole turn with its calls, or what a tool has answered."""
        self.show(dialogue([turn]))
        if turn["role"] == "tool" or turn.get("tool_calls"):
            self.show("\n")

    def _take(self, piece: str) -> None:
        self.heard += piece
        self.show(piece)

    def _opening(self) -> list[TurnDict]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def check_system(self, system: str) -> None:
        """Raise ConfigError for a system prompt that this model would not see."""
        from runner.model.encoding import write

        turns = [{"role": "system", "content": system}, {"role": "user", "content": "?"}]
        found = ""
        if not self.is_chat:
            found = "a text is continued as it stands, and has no system prompt"
        else:
            try:
                text = write(self.tokenizer, turns, {}, tokenize=False, add_generation_prompt=True)
                if system not in text:
                    found = "the chat template leaves it out"
            except Exception as error:  # a template computes, and can fail in any way
                found = f"the chat template refuses it: {error}"
        if found:
            fix = "model.tokenizer.chat_template=chatml, or no system prompt"
            found = f"{self.name}: {found}"
            raise ConfigError(
                Fault(
                    where="system",
                    found=found,
                    expected="a template that writes it",
                    fix=fix,
                )
            )

    def to_rows(self) -> list[JsonObject]:
        """The conversation as rows of a dataset: one of messages, or one for each text."""
        if not self.is_chat:
            texts = [turn["content"] for turn in self.turns]
            pairs = zip(texts[::2], texts[1::2], strict=True)
            return [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
        row: JsonObject = {"messages": [*self._opening(), *self.turns]}
        if self.generator.agent:
            from transformers.utils import get_json_schema

            schemas = [get_json_schema(tool) for tool in self.generator.agent.tools]
            row["tools"] = json.dumps(schemas)
        return [row]


def open_conversation(request: Request, show: Callable[[str], object]) -> Conversation:
    """A conversation with the model of a request, which is loaded."""
    options = request.options
    # What is imported and loaded here stays to the end.
    with quiet(), uncollected():
        from runner.generate.completion import TextGenerator
        from runner.generate.sampler import Sampler, sample
        from runner.model.chat import check_calls, check_rendering, check_template
        from runner.training.components.trained_model import load_trained

        model, tokenizer = load_trained(request.experiment, request.weights, request.head)
        is_chat = is_chat_model(request.run, tokenizer, options.style)
        check_template(tokenizer, chats=is_chat)
        name = f"{request.name} ({request.weights.name})"
        conversation = Conversation(name, tokenizer, is_chat, show)
        agent = None
        if is_chat:
            probe = {"prompt": [{"role": "user", "content": "?"}]}
            check_rendering(tokenizer, iter([(probe, ())]))
            agent = _offered_tools(request, conversation)
        if agent:
            check_calls(tokenizer)
        elif not tokenizer.chat_template:
            conversation.notes["text"] = "no chat template: each text is continued as it stands"
        elif not is_chat:
            conversation.notes["text"] = (
                "each text is continued as it stands, as in the run; as=chat uses the template"
            )
        # A turn that calls tools is shown when it is whole, and its calls can be read.
        on_step = None if agent else conversation.hear_tokens
        sampler: Sampler = functools.partial(sample, model, halves=True, on_step=on_step)
        conversation.generator = TextGenerator(
            model,
            tokenizer,
            request.build_sampling(model),
            options.seed,
            agent=agent,
            sampler=sampler,
        )
    if options.system:
        conversation.check_system(options.system)
        conversation.system = options.system
    return conversation


def _offered_tools(request: Request, conversation: Conversation) -> Agent | None:
    """The tools of a run, which show what they do; None without any."""
    if not request.options.tools:
        return None
    agent = request.build_agent(has_rows=False)
    if agent is None:
        return None
    if agent.environments is not None:
        conversation.notes["tools"] = "those of its environment are left out, as a row begins it"
    if not agent.tools:
        return None
    names = ", ".join(tool.__name__ for tool in agent.tools)
    conversation.notes["tools"] = f"{names}; tools=false offers none"
    return replace(agent, environments=None, on_turn=conversation.hear_turn)
