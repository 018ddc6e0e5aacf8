"""A Modelfile, with which Ollama runs a GGUF file.

Ollama has templates of its own, in the language of Go. Most chat templates only write fixed texts
around what is said: these texts are read from what the template writes, a template of Go is made of
them, and both are compared on conversations.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from runner.io.files import read_json
from runner.model.chat import turn_end
from runner.model.encoding import shared_length, write

# The parameters of Ollama by the names of transformers.
PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}
SYSTEM_FIRST = "{{- if .System }}«system»{{ .System }}«/system»{{ else }}«opening»{{ end }}"
OPENING = "{{- if not .System }}«opening»{{ end }}"
USER_FIRST = '{{- if eq .Role "user" }}«user»'
# The user's first turn is the first or, behind the system message, the second.
SYSTEM_JOINED = (
    '{{- if eq .Role "user" }}{{ if and $.System (le $i 1) }}«system»{{ $.System }}«/system»'
    "{{ else }}«user»{{ end }}"
)
GO = """\
{{- if .System }}«system»{{ .System }}«/system»{{ else }}«opening»{{ end }}
{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}«user»{{ .Content }}«/user»
{{- else if eq .Role "assistant" }}«answer»{{ .Content }}{{ if not $last }}«/answer»{{ end }}
{{- end }}
{{- if and $last (ne .Role "assistant") }}«prompt»{{ end }}
{{- end }}"""
SYSTEM = {"role": "system", "content": "the system's words"}
QUESTIONS = [{"role": "user", "content": f"question {number}"} for number in range(3)]
ANSWERS = [{"role": "assistant", "content": f"reply {number}"} for number in range(2)]
LONG = [QUESTIONS[0], ANSWERS[0], QUESTIONS[1], ANSWERS[1], QUESTIONS[2]]

WriteTurns = Callable[[Sequence[dict[str, str]], bool], str]


@dataclass(frozen=True)
class Frame:
    """The texts before and after what somebody says."""

    before: str
    after: str


@dataclass(frozen=True)
class ChatForm:
    """The texts that a chat template writes around what is said."""

    opening: str  # before the first turn, without a system message
    user: Frame
    answer: Frame
    prompt: str  # opens the answer
    system: Frame | None  # None where the template takes no system message
    joins_system: bool  # the system message begins the first turn of the user

    def render(self, turns: Sequence[dict[str, str]]) -> str:
        """A conversation that waits for an answer, as the template of Go writes it."""
        text = self.opening
        user_before = self.user.before
        for turn in turns:
            said = turn["content"]
            if turn["role"] == "system" and self.system:
                text = self.system.before + said + self.system.after
                user_before = "" if self.joins_system else user_before
            elif turn["role"] == "user":
                text += user_before + said + self.user.after
                user_before = self.user.before
            elif turn["role"] == "assistant":
                text += self.answer.before + said + self.answer.after
        return text + self.prompt


def read_form(write_turns: WriteTurns) -> ChatForm | None:
    """The texts that a template writes around what is said; None where it does more than that.

    ``write_turns`` writes turns with the template, opened for an answer or not.
    """
    question, follow_up = QUESTIONS[:2]
    try:
        asked = write_turns([question], False)
        opened = write_turns([question], True)
        answered = write_turns([question, ANSWERS[0]], False)
        whole = write_turns([question, ANSWERS[0], follow_up], True)
    except Exception:  # whatever a template raises
        return None
    head, _, behind_asked = asked.partition(question["content"])
    _, _, behind_opened = opened.partition(question["content"])
    _, _, behind_answered = answered.partition(ANSWERS[0]["content"])
    _, _, behind = whole.partition(question["content"])
    before_answer, _, behind = behind.partition(ANSWERS[0]["content"])
    between, _, _ = behind.partition(follow_up["content"])
    # Some templates write an end token behind a conversation that waits for no answer.
    user_after = behind_asked[: shared_length(behind_asked, behind_opened)]
    answer_after = between[: shared_length(behind_answered, between)]
    user_before = between.removeprefix(answer_after)
    system, joins_system = _read_system(write_turns, user_before)
    form = ChatForm(
        opening=head.removesuffix(user_before),
        user=Frame(user_before, user_after),
        answer=Frame(before_answer.removeprefix(user_after), answer_after),
        prompt=behind_opened.removeprefix(user_after),
        system=system,
        joins_system=joins_system,
    )
    conversations = [QUESTIONS[:1], LONG]
    if system:
        conversations += [[SYSTEM, QUESTIONS[0]], [SYSTEM, *LONG]]
    for turns in conversations:
        if form.render(turns) != write_turns(turns, True):
            return None
    return form


def _read_system(write_turns: WriteTurns, user_before: str) -> tuple[Frame | None, bool]:
    """The texts around a system message, and whether it stands in the user's first turn."""
    try:
        text = write_turns([SYSTEM, QUESTIONS[0]], False)
    except Exception:  # whatever a template raises
        return None, False
    before, _, behind = text.partition(SYSTEM["content"])
    between, question, _ = behind.partition(QUESTIONS[0]["content"])
    if not question:  # it is not written
        return None, False
    joins = not between.endswith(user_before)
    return Frame(before, between if joins else between.removesuffix(user_before)), joins


def to_go(form: ChatForm, bos: str) -> str:
    """The template of Go that writes the same but ``bos``, a token that llama.cpp adds itself."""
    template = GO
    if form.joins_system:
        template = template.replace(SYSTEM_FIRST, OPENING).replace(USER_FIRST, SYSTEM_JOINED)
    elif form.system is None:
        template = template.replace(SYSTEM_FIRST, "«opening»")
    system = form.system or Frame("", "")
    texts = {
        "«opening»": form.opening.removeprefix(bos),
        "«system»": system.before.removeprefix(bos),
        "«/system»": system.after,
        "«user»": form.user.before,
        "«/user»": form.user.after,
        "«answer»": form.answer.before,
        "«/answer»": form.answer.after,
        "«prompt»": form.prompt,
    }
    for mark, text in texts.items():
        # As an action, so that Go keeps its blanks.
        action = f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""
        template = template.replace(mark, action)
    return template


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True where prompts begin with the token that begins a text: chats, if there is a template."""
    bos = tokenizer.bos_token
    if bos is None or tokenizer("a")["input_ids"][0] != tokenizer.bos_token_id:
        return False
    return not tokenizer.chat_template or _write(tokenizer, QUESTIONS[:1], True).startswith(bos)


def _write(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[dict[str, str]], is_opened: bool
) -> str:
    """The text of some turns, with ``is_opened`` up to where the next answer begins."""
    text: str = write(tokenizer, turns, {}, tokenize=False, add_generation_prompt=is_opened)
    return text


def write_modelfile(
    folder: Path, weights: str, name: str, tokenizer: PreTrainedTokenizerBase, settings: Path
) -> str:
    """Write the Modelfile of a GGUF file beside it; return a note on its template.

    ``settings`` is the generation_config.json of the model.
    """
    form = read_form(partial(_write, tokenizer)) if tokenizer.chat_template else None
    lines = [f"# ollama create {name} -f Modelfile && ollama run {name}", f"FROM ./{weights}"]
    if not tokenizer.chat_template:
        note = "there is no chat template, so Ollama hands on the prompt as it is"
        lines.append('TEMPLATE """{{ .Prompt }}"""')
    elif form is None:
        note = (
            "Ollama's language cannot write this chat template; Ollama since 2026 and "
            "llama-server use the one in the file"
        )
        lines.append(f"# {note}. For an older one, write TEMPLATE here.")
    else:
        note = "Ollama's template writes what the chat template does, without tools"
        if form.system is None:
            note += " or a system message, which it does not take either"
        if "strftime_now" in str(tokenizer.chat_template):
            note += "; the date in it is today's"
        bos = str(tokenizer.bos_token) if adds_bos(tokenizer) else ""
        lines.append(f'TEMPLATE """{to_go(form, bos)}"""')
    generation = read_json(settings) or {}
    for stop in _list_stops(tokenizer, generation.get("eos_token_id")):
        lines.append(f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}")
    for key, parameter in PARAMETERS.items():
        if generation.get(key) is not None:
            lines.append(f"PARAMETER {parameter} {generation[key]}")
    (folder / "Modelfile").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return note


def _list_stops(tokenizer: PreTrainedTokenizerBase, ends: int | list[int] | None) -> list[str]:
    """The texts that end an answer: the end tokens, and what the template writes behind one."""
    ids = [ends] if isinstance(ends, int) else ends or []
    texts = [tokenizer.decode([token]) for token in ids]
    texts.append(turn_end(tokenizer).strip())
    return [text for text in dict.fromkeys(texts) if text]
