"""Templates that render tools.

The assistant's thoughts and calls are trained, the output of tools never is.
"""

import json

import pytest
from tiny import CHATML, tiny_tokenizer

from runner.errors import ConfigError
from runner.launch.compose.stages import compose_runs
from runner.model.chat import check_template, set_template
from runner.model.jinja import read_template, template_names
from runner.run.key import key_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
AGENT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rome?"},
    {"role": "assistant", "content": "I look it up.", "tool_calls": [CALL]},
    {"role": "tool", "name": "weather", "content": "22 degrees"},
    {"role": "assistant", "reasoning_content": "That is warm.", "content": "It is warm."},
]
TRAINED = {
    "react": [
        'Thought: I look it up.\nAction: weather\nAction Input: {"city": "Rome"}',
        "Thought: That is warm.\nFinal Answer: It is warm.",
    ],
    "hermes": [
        (
            'I look it up.\n<tool_call>\n{"name": "weather", '
            '"arguments": {"city": "Rome"}}\n</tool_call>'
        ),
        "<think>\nThat is warm.\n</think>\n\nIt is warm.",
    ],
}


@pytest.fixture(scope="module", params=[True, False], ids=["like qwen", "like pythia"])
def bare(request):
    """A tokenizer without a template, of either kind."""
    tokenizer = tiny_tokenizer(chat=request.param)
    tokenizer.chat_template = None
    return tokenizer


def with_template(tokenizer, name):
    tokenizer.chat_template = read_template(name)
    return tokenizer


def trained_of(tokenizer, turns, tools=TOOLS):
    spelt = tokenizer.apply_chat_template(
        turns, tools=tools, return_dict=True, return_assistant_tokens_mask=True
    )
    pairs = zip(spelt["input_ids"], spelt["assistant_masks"], strict=True)
    return tokenizer.decode([token for token, mask in pairs if mask])


@pytest.mark.quick(2)
@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools given", "no tools given"])
@pytest.mark.parametrize("name", TRAINED)
def test_thoughts_and_calls_are_trained_with_their_end_and_observations_are_not(bare, name, tools):
    tokenizer = with_template(bare, name)
    end = tokenizer.eos_token
    assert trained_of(tokenizer, AGENT, tools) == end.join(TRAINED[name]) + end
    text = tokenizer.apply_chat_template(AGENT, tools=tools, tokenize=False)
    assert "22 degrees" in text
    assert "Be brief." in text
    assert ("The weather of a city." in text) == bool(tools)


@pytest.mark.parametrize("name", TRAINED)
def test_every_answer_follows_the_prompt_that_generation_spells(bare, name):
    tokenizer = with_template(bare, name)
    rendered = tokenizer.apply_chat_template(AGENT, tools=TOOLS, return_dict=False)
    for place in (2, 4):
        prompt = tokenizer.apply_chat_template(
            AGENT[:place], tools=TOOLS, add_generation_prompt=True, return_dict=False
        )
        assert rendered[: len(prompt)] == prompt
        assert tokenizer.decode(rendered[len(prompt) :]).startswith(TRAINED[name][place // 2 - 1])


@pytest.mark.parametrize("name", TRAINED)
def test_a_call_is_spelt_alike_in_every_shape_that_data_has(bare, name):
    tokenizer = with_template(bare, name)
    shapes = [
        CALL,
        CALL["function"],
        {"function": {"name": "weather", "arguments": json.dumps({"city": "Rome"})}},
    ]
    turns = [
        [*AGENT[:2], {"role": "assistant", "content": "", "tool_calls": [shape]}]
        for shape in shapes
    ]
    [spelt] = {tokenizer.apply_chat_template(talk, tools=TOOLS, tokenize=False) for talk in turns}
    [flat] = {
        tokenizer.apply_chat_template(turns[0], tools=tools, tokenize=False)
        for tools in (TOOLS, [TOOLS[0]["function"]])
    }
    assert spelt == flat
    assert '{"city": "Rome"}' in spelt


@pytest.mark.parametrize("name", TRAINED)
def test_several_calls_of_one_turn_are_all_trained(bare, name):
    tokenizer = with_template(bare, name)
    oslo = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    turns = [AGENT[1], {"role": "assistant", "content": "", "tool_calls": [CALL, oslo]}]
    trained = trained_of(tokenizer, turns)
    assert trained.index("Rome") < trained.index("Oslo")
    assert trained.count("weather") == 2
    assert trained.endswith(tokenizer.eos_token)


@pytest.mark.slow
def test_rows_that_call_tools_need_a_template_that_spells_them(bare):
    for name in template_names():
        tokenizer = with_template(bare, name)
        check_template(tokenizer, chats=True)
        if name in TRAINED or name == "brief":
            check_template(tokenizer, chats=True, calls=True)
            continue
        with pytest.raises(ConfigError, match="leaves out the calls") as caught:
            check_template(tokenizer, chats=True, calls=True)
        assert "hermes" in caught.value.faults[0].fix


def test_answers_alone_are_trained_only_where_the_template_marks_them(bare):
    check_template(with_template(bare, "plain"), chats=True, answers_only=True)
    bare.chat_template = CHATML
    check_template(bare, chats=True)
    with pytest.raises(ConfigError, match="does not mark") as caught:
        check_template(bare, chats=True, answers_only=True)
    assert caught.value.faults[0].fix == "trainer.args.assistant_only_loss=false weight=answers"


def test_of_several_templates_one_is_the_default():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"tool_use": "{{ messages }}"}
    with pytest.raises(ConfigError, match="chat_template=chatml"):
        set_template(tokenizer, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{% set gone = messages.clear() %}{{ messages }}",
        "{% for n in range(1000000000) %}{% endfor %}",
    ],
)
def test_a_template_of_anybody_stays_in_the_sandbox(tmp_path, template):
    file = tmp_path / "own.jinja"
    file.write_text(template)
    with pytest.raises(ConfigError, match="chat_template"):
        set_template(tiny_tokenizer(), str(file))


@pytest.mark.slow
def test_a_template_reaches_nothing_of_python(tmp_path):
    file = tmp_path / "own.jinja"
    made = tmp_path / "made"
    file.write_text("{{ lipsum.__globals__['os'].mkdir('" + str(made) + "') }}")
    with pytest.raises(ConfigError, match="unsafe"):
        set_template(tiny_tokenizer(), str(file))
    assert not made.exists()


def compose(*words):
    [composed] = compose_runs(words)
    return composed.cfg


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", template_names())
def test_the_template_group_offers_every_shipped_template(name):
    assert compose(f"template={name}")["model"]["tokenizer"]["chat_template"] == name


@pytest.mark.slow
def test_the_template_group_is_a_short_name_and_no_part_of_a_run():
    assert key_of(compose()) == key_of(compose("template=none"))
    same = [compose("template=react"), compose("model.tokenizer.chat_template=react")]
    assert key_of(same[0]) == key_of(same[1])
    assert "template" not in same[0]
    chosen = compose("template=chatml", "model=pythia_160m")
    assert chosen["model"]["tokenizer"]["chat_template"] == "chatml"
