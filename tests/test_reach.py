"""Everything that a row says reaches the model, or is refused or reported.

Roles, thoughts, calls, keys, weights.
"""

import json

import pytest
from tiny import tiny_model, tiny_tokenizer

from runner.__main__ import main
from runner.io.turns import habits_of, join_turns
from runner.model.chat import look_at_texts
from runner.model.encoding import write
from runner.model.jinja import family_files, read_template

# Like Mistral's first templates, which know only these turns.
ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %}"
    "{{ m['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
CALL = {"name": "weather", "arguments": '{"city": "paris"}'}  # as it goes over the wire
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call00001", "type": "function", "function": CALL}],
}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "22 degrees"}


def user(text, **keys):
    return {"role": "user", "content": text, **keys}


def bot(text, **keys):
    return {"role": "assistant", "content": text, **keys}


def system(text, role="system"):
    return {"role": role, "content": text}


TALKS = {
    "developer": [system("silver", "developer"), user("river?"), bot("paper")],
    "system": [system("silver"), user("river?"), bot("paper")],
    "system in the middle": [
        user("river?"),
        bot("paper"),
        system("silver"),
        user("stone?"),
        bot("copper"),
    ],
    "both": [system("gold"), system("silver", "developer"), user("river?"), bot("paper")],
    "twice": [user("silver"), user("river?"), bot("paper"), bot("copper")],
    "thought": [user("river?"), bot("paper", reasoning="silver")],
    "call": [user("river?"), CALLED, RESULT, bot("paper")],
    "words beside a call": [user("river?"), {**CALLED, "content": "silver"}, RESULT, bot("paper")],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny model whose own template is one of TRL's, or this text."""
    made = {}
    base = tiny_model(tmp_path_factory.mktemp("models") / "base")

    def with_template(name):
        if name not in made:
            made[name] = base.parent / str(len(made))
            made[name].mkdir()
            for file in base.iterdir():
                (made[name] / file.name).symlink_to(file)
            (made[name] / "chat_template.jinja").unlink()
            text = read_template(name) if name in family_files() else name
            (made[name] / "chat_template.jinja").write_text(text)
        return made[name]

    return with_template


@pytest.fixture
def preview(model, tmp_path, capsys):
    """The output of the preview for eight equal rows, without the marks below the tokens."""

    def shown(turns, template, *words, code=0, verb=("preview",), trainer="sft", **columns):
        row = columns if turns is None else {"messages": turns, **columns}
        # a process looks at each but once
        file = tmp_path / f"rows{len(list(tmp_path.iterdir()))}.jsonl"
        file.write_text("\n".join([json.dumps(row)] * 8))
        words = [f"trainer={trainer}", f"dataset={file}", f"model={model(template)}", *words]
        words += ["rows=1", "tolerate.no_end=true"] if verb else []
        assert main([*verb, *words]) == code
        printed = capsys.readouterr()
        lines = [line.strip() for line in printed.out.splitlines() if set(line) - set(" ^")]
        return "\n".join(lines), printed.err

    return shown


# --- Every template, every text -------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("name", TALKS)
def test_no_template_loses_a_text_without_a_word(name):
    """For each family, every text is rendered, or the row is refused, or the loss is reported."""
    tokenizer = tiny_tokenizer()
    turns = TALKS[name]
    tokenizer.bos_token = "<s>"
    read = [turn | {"content": turn["content"] or ""} for turn in turns]
    for turn in read:
        if "tool_calls" in turn:  # as a row is read
            call = turn["tool_calls"][0]
            turn["tool_calls"] = [
                call | {"function": CALL | {"arguments": json.loads(CALL["arguments"])}}
            ]
    silent = []
    for family in family_files():
        tokenizer.chat_template = read_template(family)
        reach = look_at_texts(tokenizer, [({"messages": read}, ("messages",))])
        if reach.faults() or list(reach.notes()):
            continue
        written = write(tokenizer, read, {}, tokenize=False)
        texts = [turn["content"] for turn in read] + ["paris", "weather"] * (name.endswith("call"))
        texts += ["silver"] * (name == "thought")
        silent += [(family, text) for text in texts if text not in written]
    assert not silent


def test_the_habits_of_a_template_are_found():
    tokenizer = tiny_tokenizer()
    habits = {}
    for family in ("qwen2_5", "qwen3", "gptoss", "deepseekv3"):
        tokenizer.chat_template = read_template(family)
        habits[family] = habits_of(tokenizer)
    assert [habit.developer for habit in habits.values()] == [
        "system",
        "system",
        "developer",
        "system",
    ]
    assert all("reasoning_content" in habits[family].thoughts for family in ("qwen3", "gptoss"))
    assert not habits["qwen2_5"].thoughts
    assert [habit.takes_mappings for habit in habits.values()] == [True, True, True, False]


# --- By the command -------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_developer_turn_becomes_a_system_turn_if_the_template_has_no_other(preview):
    shown, _ = preview(TALKS["developer"], "qwen2_5")
    assert "<|im_start|>system↵\nsilver<|im_end|>↵" in shown
    assert "Alibaba" not in shown


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "template", "join"),
    [
        ("developer", "gemma", "system"),
        ("twice", ALTERNATING, "all"),
        ("system in the middle", "gptoss", "system"),
    ],
)
def test_a_turn_that_a_template_drops_is_refused_and_the_fix_works(preview, turns, template, join):
    _, notes = preview(TALKS[turns], template, code=2)
    assert f"dataset.join_turns={join}" in notes
    assert "chatml" not in notes
    shown, _ = preview(
        TALKS[turns], template, f"dataset.join_turns={join}", "tolerate.other_template=true"
    )
    assert "silver" in shown
    assert "river?" in shown


@pytest.mark.slow
def test_the_training_refuses_as_the_preview_does_before_a_folder_is_made(preview, tmp_path):
    words = (f"output_root={tmp_path}/outputs", "trainer.args.max_steps=1")
    _, by_preview = preview(TALKS["system"], "gemma", code=2)
    _, by_training = preview(TALKS["system"], "gemma", *words, code=2, verb=())
    assert by_training == by_preview
    assert "System role not supported" in by_preview
    assert not (tmp_path / "outputs").exists()


def test_turns_are_joined_with_the_question_behind_them():
    turns = [
        system("a"),
        system("b"),
        user("c"),
        bot("d"),
        system("e"),
        bot("f"),
        user("g"),
        user("h"),
    ]
    assert [turn["content"] for turn in join_turns(turns, "system")] == [
        "a\n\nb\n\nc",
        "d",
        "e",
        "f",
        "g",
        "h",
    ]
    assert join_turns(turns, "all")[-1] == user("g\n\nh")
    # A turn between two answers becomes a user turn that keeps them apart.
    between = [user("a"), bot("b"), system("c"), bot("d")]
    assert join_turns(between, "all") == [user("a"), bot("b"), user("c"), bot("d")]
    assert join_turns([system(""), user("a"), system("b")], "system") == [user("a\n\nb")]
    weighed = [bot("a", weight=0), bot("b")]
    assert join_turns(weighed, "all") == weighed


@pytest.mark.slow
def test_thoughts_without_a_place_are_reported(preview):
    shown, notes = preview(TALKS["thought"], "qwen2_5")
    assert "silver" not in shown
    assert "the thought before the last turn, such as 'silver'; dataset.thoughts=inline" in notes


@pytest.mark.slow
def test_thoughts_are_written_by_choice_or_by_the_template(preview):
    shown, notes = preview(TALKS["thought"], "qwen2_5", "dataset.thoughts=inline")
    assert "<think>↵\nsilver↵\n</think>↵\n↵\npaper<|im_end|>" in shown
    assert "thought" not in notes
    earlier = [*TALKS["thought"], user("stone?"), bot("copper", thinking="gold")]
    shown, notes = preview(earlier, "qwen3")  # qwen3 has its own rule
    assert "gold" in shown
    assert "silver" not in shown
    assert "its own rule" in notes


@pytest.mark.slow
def test_a_call_in_the_form_of_the_wire_is_trained_as_one(preview):
    shown, _ = preview(TALKS["call"], "qwen2_5")
    assert '{"name": "weather", "arguments": {"city": "paris"}}' in shown
    older = [
        user("river?"),
        bot(None, function_call=CALL),
        {**RESULT, "role": "function"},
        bot("paper"),
    ]
    shown, _ = preview(older, "qwen3_8")
    assert "<parameter=city>↵\nparis" in shown
    assert "22 degrees" in shown


@pytest.mark.slow
def test_text_without_a_place_in_the_template_is_refused(preview):
    _, notes = preview(TALKS["words beside a call"], "llama3_1", code=2)
    assert "leaves out what the assistant says" in notes
    assert "tolerate.lost_text=true" in notes


@pytest.mark.slow
def test_text_without_a_place_is_allowed_by_choice(preview):
    _, notes = preview(TALKS["words beside a call"], "llama3_1", "tolerate.lost_text=true")
    assert "leaves out what the assistant says" in notes
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    _, notes = preview(TALKS["system"], "phi3", code=2, tools=tools)
    assert "the tools" in notes
    assert "dataset.without=[tools]" in notes
    preview(TALKS["system"], "phi3", "dataset.without=[tools]", tools=tools)


@pytest.mark.slow
def test_unread_columns_are_named(preview):
    turns = [user("river?", name="Ann", id=3), bot("paper", train=False)]
    _, notes = preview(
        turns, "qwen2_5", source="web", history=[], chat_template_kwargs={"enable_thinking": False}
    )
    assert "not used: the columns source, history; of turns id, train" in notes
    assert "not used by the chat template: chat_template_kwargs.enable_thinking, name" in notes


@pytest.mark.slow
def test_a_column_is_named_once_and_rows_that_steps_make_are_read_beyond_the_first(
    preview, tmp_path, monkeypatch
):
    _, notes = preview(
        None, "qwen2_5", prompt="river? ", completion="paper", system="gold", source="web"
    )
    assert "the column `system` is left out" in notes
    assert "not used: the column source" in notes
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_steps.py").write_text(
        "def add(row, seen=[]):\n    seen.append(row)\n"
        "    return row | ({'late': 1} if len(seen) % 3 == 0 else {})\n"
    )
    words = ("dataset.map=[{_target_: late_steps.add}]", "allow=[late_steps]")
    _, notes = preview(None, "qwen2_5", *words, prompt="river? ", completion="paper", source="web")
    assert "not used: the columns source, late" in notes


@pytest.mark.slow
def test_a_weight_rule_without_a_match_is_reported(preview):
    _, notes = preview(
        TALKS["twice"][1:3], "qwen2_5", "weight=[answers,pattern]", "weight.pattern.pattern=zinc"
    )
    assert "not used: the weights of pattern(pattern=zinc" in notes
    assert "answers(" not in notes
    _, notes = preview(TALKS["twice"][1:3], "qwen2_5", "weight=pattern", "weight.pattern=paper")
    assert "not used" not in notes


WEIGHED = [user("river?"), bot("paper", weight=0), user("stone?"), bot("copper", weight=1)]


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [(), ("trainer.args.assistant_only_loss=true",), ("weight=message",)]
)
def test_weights_of_turns_count_without_a_rule(preview, words):
    shown, _ = preview(WEIGHED, "qwen2_5", *words)
    assert "row 1: 5 of 95 tokens trained" in shown  # copper and its end


@pytest.mark.slow
def test_a_trainer_that_weighs_no_tokens_says_so(preview):
    pair = {
        "prompt": [user("river?")],
        "chosen": [bot("paper", weight=1)],
        "rejected": [bot("copper")],
    }
    _, notes = preview(None, "qwen2_5", trainer="reward", code=2, **pair)
    assert "turns of the rows have a weight" in notes
    assert "tolerate.turn_weights=true" in notes
    _, notes = preview(None, "qwen2_5", "tolerate.turn_weights=true", trainer="reward", **pair)
    assert "not used: the weights of turns" in notes


@pytest.mark.slow
def test_a_template_without_marks_is_sent_to_weights(preview):
    _, notes = preview(
        TALKS["twice"][1:3], ALTERNATING, "trainer.args.assistant_only_loss=true", code=2
    )
    assert "trainer.args.assistant_only_loss=false weight=answers" in notes
    words = (
        "trainer.args.assistant_only_loss=false",
        "weight=[answers,pattern]",
        "weight.pattern.pattern=paper",
    )
    shown, _ = preview(TALKS["twice"][1:3], ALTERNATING, *words)
    assert "weights 1 and 2" in shown


@pytest.mark.slow
def test_the_turns_before_a_question_are_asked_with_it(preview):
    row = {"instruction": "river", "input": "", "output": "stone", "history": [["paper", "copper"]]}
    shown, _ = preview(None, "qwen2_5", **row)
    assert "user↵\npaper" in shown
    assert "assistant↵\ncopper" in shown
    assert "user↵\nriver" in shown


@pytest.mark.slow
def test_a_column_named_like_an_answer_is_reported(preview):
    row = {"prompt": "river?", "target": "paper"}
    _, notes = preview(None, "qwen2_5", "reward=length", trainer="grpo", **row)
    assert "by their names the columns `prompt` and `target`" in notes
    assert "dataset.form=prompt" in notes
    _, notes = preview(
        None, "qwen2_5", "reward=length", trainer="grpo", code=2, **row | {"target": 5}
    )
    assert "by the names of columns: prompt=prompt, target=target" in notes
    assert "dataset.form=prompt" in notes
    _, notes = preview(
        None,
        "qwen2_5",
        "reward=length",
        "dataset.form=prompt",
        trainer="grpo",
        **row | {"target": 5},
    )
    assert "names" not in notes


@pytest.mark.slow
def test_a_system_prompt_that_cannot_open_a_conversation_is_reported(preview):
    system_first = [system("gold"), *TALKS["twice"][1:3]]
    shown, notes = preview(system_first, "qwen2_5", system="silver")
    assert "not used: the column system where a row's turns begin differently" in notes
    assert "gold" in shown


@pytest.mark.slow
def test_a_prompt_that_does_not_open_its_pair_is_reported(preview):
    system_first = [system("gold"), *TALKS["twice"][1:3]]
    _, notes = preview(system_first, "qwen2_5", "dataset.system=silver")
    assert "not used: dataset.system where a row's turns begin differently" in notes
    pair = {"chosen": [user("river?"), bot("paper")], "rejected": [user("river?"), bot("copper")]}
    _, notes = preview(None, "qwen2_5", trainer="dpo", prompt="silver", **pair)
    assert "not used: the column prompt where a row's turns begin differently" in notes
    _, notes = preview(None, "qwen2_5", trainer="dpo", prompt=" river? ", **pair)
    assert "not used" not in notes


TOOL = json.dumps({"type": "function", "function": {"name": "weather", "parameters": {}}})


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("tools", [[TOOL], f"[{TOOL}]", TOOL])
def test_tools_are_read_from_json(preview, tools):
    shown, _ = preview(TALKS["system"], "qwen2_5", tools=tools)
    assert '{"type": "function", "function": {"name": "weather"' in shown


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("tools", ["[]", "", None])
def test_no_tools_are_none(preview, tools):
    shown, _ = preview(TALKS["system"], "qwen2_5", tools=tools)
    assert "# Tools" not in shown


@pytest.mark.slow
def test_tools_that_are_no_json_are_refused(preview):
    _, notes = preview(TALKS["system"], "qwen2_5", code=2, tools="hammer")
    assert "found     str 'hammer'" in notes
    assert "dataset.without=[tools]" in notes


def test_stripped_blanks_and_special_tokens_in_texts_are_reported():
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<s>"
    turns = [user("what is <|im_end|>?"), bot("    x = 1\n")]
    rows = [
        ({"messages": turns}, ("messages",)),
        ({"messages": TALKS["twice"][1:3]}, ("messages",)),
    ]
    told = {}
    for family in ("llama3", "qwen2_5"):
        tokenizer.chat_template = read_template(family)
        told[family] = list(look_at_texts(tokenizer, rows).notes())
    held = (
        "in 1 of 2 rows what the user says holds <|im_end|>, "
        "which the model reads as a special token, not as text"
    )
    stripped = (
        "in 1 of 2 rows the chat template strips blanks "
        "of what the assistant says, such as '    x = 1\\n'"
    )
    assert told == {"llama3": [stripped, held], "qwen2_5": [held]}
