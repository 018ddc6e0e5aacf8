"""A chat with a model: one answer, the terminal, what it keeps, and what cannot talk."""

import io
import json
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import Command
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.__main__ import main
from runner.command import CommandLine, chat
from runner.command._conversation import Conversation
from runner.command._named_model import with_model
from runner.config.build import serve
from runner.config.experiment import Experiment
from runner.errors import ConfigError, DataError
from runner.generate import completion
from runner.generate.agent import Agent
from runner.generate.completion import TextGenerator
from runner.generate.sampler import Responses, Sampling, sample
from runner.io.files import PACKAGE, read_rows, write_json
from runner.launch.compose.stages import compose_runs
from runner.model.chat import set_template
from runner.model.encoding import TokenTexts
from runner.reward.rule import price
from runner.run import open_run, write_config
from runner.run.seal import seal

TINY = PACKAGE / "model" / "tiny"
QUESTION = "Sort these digits: 3 1 2 4"


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY).eval()


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture
def talk(tmp_path, monkeypatch, capsys):
    """Run the verb in a folder of the test's own; return the exit code and both streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def call(*words: str, verb: str = "chat", stdin: str = "", code: int = 0):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        done = main([verb, *words])
        streams = capsys.readouterr()
        assert done == code, streams.err
        return streams

    return call


@pytest.fixture
def laid(tmp_path, monkeypatch):
    """A finished run whose model is the shipped one, without any training."""
    monkeypatch.chdir(tmp_path)

    def lay(*words: str):
        (composed,) = compose_runs([*words, "name=laid"])
        run = open_run(composed.cfg, composed.overrides)
        AutoModelForCausalLM.from_pretrained(TINY).save_pretrained(run.model)
        AutoTokenizer.from_pretrained(TINY).save_pretrained(run.model)
        seal(run.model)
        run.set_status("finished", step=1)
        return run

    return lay


def open_chat(model, tokenizer, shown: list, tokens: int = 12, agent=None, sampler=None):
    """A conversation with a model, whose pieces go into a list."""
    conversation = Conversation("tiny", tokenizer, True, shown.append)
    how = Sampling(tokens, temperature=0, max_length=1024)

    def own_sampler(prompts, how, noise_BR):
        return sample(model, prompts, how, noise_BR, on_step=conversation.hear_tokens)

    conversation.generator = TextGenerator(
        model, tokenizer, how, agent=agent, sampler=sampler or own_sampler
    )
    return conversation


# --- The tokens as they come ----------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "generate", "auto"])
def test_each_token_is_told_as_it_comes(model, engine, monkeypatch):
    if engine == "auto":  # a graph tells nothing
        monkeypatch.setattr("runner.generate.sampler.choose_engine", lambda model: "graph")
    steps = []
    how = Sampling(6, temperature=0)
    noise = torch.zeros(1, 6)
    responses = sample(model, [[5, 6, 7]], how, noise, engine=engine, on_step=steps.append)
    assert torch.cat(steps).tolist() == responses.tokens[0].tolist()
    assert len(steps) == 6


def test_what_is_raised_at_a_token_ends_the_sampling(model):
    def stop(token_B):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(model, [[5]], Sampling(9), torch.zeros(1, 9), on_step=stop)


def test_pieces_are_whole_characters(tokenizer):
    text = "3 é 字 🙂!"
    pieces = TokenTexts(tokenizer)
    ids = tokenizer(text)["input_ids"]
    texts = [pieces.add(token) for token in ids]
    assert "".join([*texts, pieces.rest()]) == text
    assert len(ids) > len(text)
    assert not any("\ufffd" in piece for piece in texts)
    pieces.add(tokenizer("字")["input_ids"][0])
    assert pieces.rest() == "\ufffd"  # the end of an answer that was stopped


# --- One answer -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_prompt_gets_the_answer_of_predict(talk):
    words = ("model=tiny", f"prompt={QUESTION}", "temperature=0")
    answered = talk(*words)
    assert answered.out == talk(*words, verb="predict").out
    assert answered.err == ""
    assert talk("model=tiny", "temperature=0", stdin=f"{QUESTION}\n").out == answered.out


def test_without_a_terminal_and_a_question_it_says_what_to_type(talk):
    assert 'prompt="<question>"' in talk("model=tiny", code=2).err


@pytest.mark.slow
def test_both_models_answer_under_their_names(talk, laid):
    run = laid("dataset=toy_sort")
    answered = talk(str(run), "against=start", f"prompt={QUESTION}", "temperature=0").out
    first, second = answered.removeprefix("[").split("[")
    assert first.startswith(f"{run} (model)]\n")
    assert second.startswith(f"{run} (start)]\n")
    assert first.partition("]")[2] == second.partition("]")[2]
    assert talk(str(run.model), f"prompt={QUESTION}", "temperature=0").out in answered


def test_a_run_on_plain_text_goes_on_with_it(talk, laid):
    run = laid("dataset=toy_sort")
    (run.folder / "samples.jsonl").write_text('{"step": 1, "prompt": "as it stands"}\n')
    text = talk(str(run), "prompt=3 1", "temperature=0")
    assert "as=chat uses the template" in text.err
    assert text.out == talk("model=tiny", "as=text", "prompt=3 1", "temperature=0").out
    assert "has no system prompt" in talk(str(run), "prompt=3 1", "system=Be kind.", code=2).err


def test_what_is_no_run_is_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    write_json(tmp_path / "mine" / "config.json", {})
    (tmp_path / "outputs" / "sort").mkdir(parents=True)
    for word, path in (("mine", "mine"), ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")):
        line = with_model(CommandLine("chat", ["seed=1"], [word]))
        assert line.runs == []
        assert line.overrides == ["model=hub", f"model.path={path}", "seed=1"]
    for word in ("sort", "sort/ren", "outputs/sort", "a1b2c3d4e5", "./mine2"):
        assert with_model(CommandLine("chat", [], [word])).runs == [word]


# --- What cannot talk -----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["chat", "serve"])
def test_a_reward_model_is_refused_in_words(talk, laid, verb):
    run = laid("trainer=reward", "dataset=toy_sort")
    error = talk(str(run), verb=verb, code=2).err
    assert "it scores answers, and writes none" in error
    assert f"python -m runner predict {run} prompt=" in error


def test_a_strangers_tool_may_not_run(talk, laid, tmp_path):
    run = laid("dataset=toy_sort")
    mark = tmp_path / "was-run"
    tool = {"_target_": "subprocess.Popen", "args": ["touch", str(mark)]}
    write_config(run.folder, run.cfg | {"trainer": run.cfg["trainer"] | {"tools": [tool]}})
    for verb in ("chat", "predict"):
        error = talk(str(run), "prompt=hi", verb=verb, code=2).err
        assert "subprocess.Popen may not run" in error
    assert not mark.exists()


def test_words_of_rows_are_none_of_a_chat(talk):
    error = talk("model=tiny", "n=4", "dataset=toy_sort", code=2).err
    assert "chat has no such key" in error
    assert "max_new_tokens" in error


# --- The conversation -----------------------------------------------------------------------------


def test_an_answer_is_told_piece_by_piece_and_kept(model, tokenizer):
    shown: list = []
    conversation = open_chat(model, tokenizer, shown)
    conversation.system = "Be kind."
    assert conversation.answer(QUESTION) == "stop"
    assert len(shown) > 3
    kept = conversation.turns[-1]
    assert kept == {"role": "assistant", "content": "".join(shown)}
    opening = {"role": "system", "content": "Be kind."}
    asking = {"role": "user", "content": QUESTION}
    assert conversation.to_rows() == [{"messages": [opening, asking, kept]}]
    prompts = []
    conversation.generator.plan = lambda rows: prompts.append(rows[0]["prompt"])
    conversation.answer("And now?")
    assert prompts == [[opening, asking, kept, {"role": "user", "content": "And now?"}]]


def test_an_answer_that_is_stopped_keeps_what_was_written(model, tokenizer):
    shown: list = []
    conversation = open_chat(model, tokenizer, shown)

    def show(piece):
        shown.append(piece)
        if len(shown) == 2:
            raise KeyboardInterrupt

    conversation.show = show
    assert conversation.answer(QUESTION) == "interrupted"
    assert conversation.turns[-1] == {"role": "assistant", "content": "".join(shown)}
    conversation.show = shown.append
    assert conversation.answer(QUESTION) == "stop"
    assert [turn["role"] for turn in conversation.turns] == ["user", "assistant"] * 2


def test_a_question_that_does_not_fit_is_no_part_of_the_chat(model, tokenizer):
    conversation = open_chat(model, tokenizer, [])
    with pytest.raises(DataError, match="1024"):
        conversation.answer("3 " * 2000)
    assert conversation.turns == []


def test_a_system_prompt_that_no_model_would_see_is_refused(model, tokenizer):
    conversation = open_chat(model, tokenizer, [])
    template = (
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match="leaves it out"):
        conversation.check_system("Be kind.")
    tokenizer.chat_template = "{{ raise_exception('no system turn') }}"
    with pytest.raises(ConfigError, match="no system turn"):
        conversation.check_system("Be kind.")


def test_both_models_of_a_chat_get_a_system_prompt_or_none_does(model, tokenizer, tmp_path, capsys):
    """``/system`` reaches the prompts of both; where one refuses it, the other keeps its own."""
    prompts: list = []

    def listening(texts, how, noise_BR):
        prompts.extend(tokenizer.decode(ids) for ids in texts)
        return Responses([torch.tensor([how.stop_ids[0]])], [torch.zeros(1)])

    other_tokenizer = AutoTokenizer.from_pretrained(TINY)
    conversations = [
        open_chat(model, tokenizer, [], sampler=listening),
        open_chat(model, other_tokenizer, [], sampler=listening),
    ]
    file = tmp_path / "chat.jsonl"
    assert not chat._obey("/system Be kind.", conversations, file)
    assert capsys.readouterr().out == "system    Be kind.\n"
    for conversation in conversations:
        conversation.answer(QUESTION)
    assert len(prompts) == 2
    assert all("Be kind." in prompt for prompt in prompts)
    other_tokenizer.chat_template = "{{ raise_exception('no system turn') }}"
    with pytest.raises(ConfigError, match="tiny: the chat template refuses it: no system turn"):
        chat._obey("/system Be brief.", conversations, file)
    assert [conversation.system for conversation in conversations] == ["Be kind."] * 2


def test_calls_of_tools_are_made_and_shown(model, tokenizer):
    set_template(tokenizer, "hermes")
    function = '{"name": "price", "arguments": {"place": "market", "item": "tea"}}'
    texts = iter([f"<tool_call>\n{function}\n</tool_call>", "It costs that."])

    def scripted(prompts, how, noise_BR):
        ids = [*tokenizer(next(texts))["input_ids"], how.stop_ids[0]]
        return Responses([torch.tensor(ids)], [torch.zeros(len(ids))])

    shown: list = []
    agent = Agent([price])
    conversation = open_chat(model, tokenizer, shown, 400, agent, scripted)
    agent = Agent([price], on_turn=conversation.hear_turn)
    conversation.generator.agent = agent
    assert conversation.answer("What is tea at the market?") == "stop"
    answer = price("market", "tea")
    assert "".join(shown) == (
        f'price({{"place": "market", "item": "tea"}})\n= {answer}\nIt costs that.'
    )
    (row,) = conversation.to_rows()
    assert [turn["role"] for turn in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(row["tools"])[0]["function"]["name"] == "price"


def test_a_saved_chat_is_a_dataset(model, tokenizer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    conversation = open_chat(model, tokenizer, [])
    file = tmp_path / "chats" / "chat.jsonl"
    chat._save([conversation], file)
    assert not file.exists()
    conversation.answer(QUESTION)
    chat._save([conversation], file)
    conversation.system = "Be kind."
    chat._save([conversation], file)
    assert "dataset=chats/chat.jsonl" in capsys.readouterr().out
    (run,) = compose_runs(
        ["dataset=local", "dataset.path=chats/chat.jsonl", "dataset.split.eval=null"]
    )
    rows, _ = serve(Experiment.read(run.cfg).dataset.node, to="messages", seed=0, keep=())
    assert len(rows) == len(read_rows(file)) == 2
    assert rows[1]["messages"][0] == {"role": "system", "content": "Be kind."}


# --- The terminal ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_chat_in_a_terminal(tmp_path, runner):
    """Ctrl-C stops the answer and not the chat; what is typed with a slash is obeyed."""
    words = ["chat", "model=tiny", "max_new_tokens=900", "temperature=2"]
    with Terminal(words, runner) as terminal:
        terminal.wait_for("> ")
        terminal.type("\x03")
        terminal.wait_for("Ctrl-D or /quit ends the chat)")
        terminal.type("Sort \\\n these\n")
        terminal.wait_for("these\r\n")
        terminal.wait_for(" ")
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.type("/system Be kind.\n/save\n/nothing\n/reset\n/save\n/quit\n")
        terminal.wait_for("nothing was said yet")
    assert terminal.code == 0
    assert "/nothing is none of" in terminal.output
    (row,) = read_rows(tmp_path / "outputs" / "chats" / "tiny" / "chat.jsonl")
    system, asking, answer = row["messages"]
    assert system["content"] == "Be kind."
    assert asking["content"] == "Sort \n these"
    assert 0 < len(answer["content"]) < 5000


def answer_in_a_terminal(words: list[str]) -> int:
    """Run the command in the terminal of the first word, with a model that never ends by itself."""
    name, *words = words
    terminal = os.open(name, os.O_RDWR)  # a session without a terminal gets the first it opens
    for descriptor in range(3):
        os.dup2(terminal, descriptor)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    completion.stop_ids = lambda model: []
    return main(words)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, words: list, runner: Command):
        self.output = ""
        self.seen = 0
        self.descriptor, self.other_end = pty.openpty()
        environment = runner.environment | {
            "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{Path(__file__).parent}",
            "TERM": "dumb",
        }
        self.command = runner.warm.start(
            [os.ttyname(self.other_end), *words],
            runner.folder,
            environment,
            door="test_chat:answer_in_a_terminal",
            session=True,
        )

    def __enter__(self):
        return self

    def wait_for(self, text: str) -> None:
        """Wait until a text appears behind what was waited for before."""
        deadline = time.monotonic() + 120
        while text not in self.output[self.seen :]:
            assert time.monotonic() < deadline, self.output
            if select.select([self.descriptor], [], [], 1)[0]:
                self.output += os.read(self.descriptor, 4096).decode(errors="replace")
        self.seen = self.output.index(text, self.seen) + len(text)

    def type(self, keys: str) -> None:
        """Press keys; the line editor shows its sign a moment before it listens."""
        time.sleep(0.2)
        os.write(self.descriptor, keys.encode())

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.command.send(signal.SIGKILL)
        self.code = self.command.wait().returncode
        os.close(self.descriptor)
        os.close(self.other_end)
