"""Commands as people type them, by the real loading code: a local hub holds the real names."""

import json

import pytest
from hub import serve_recipes
from warm import DOOR

from runner.run import Run

pytestmark = pytest.mark.slow
QUICK = (
    "trainer.args.max_steps=2",
    "trainer.args.logging_steps=1",
    "trainer.args.per_device_train_batch_size=4",
    "dataset.limit.eval=8",
)
SHORT = ("trainer.args.max_completion_length=8", "trainer.args.num_generations=2")
COMMANDS = {
    "dpo on the tiny model": ("trainer=dpo", "dataset=descriptiveness"),
    "the mission's": (
        *("trainer=ppo", "model=pythia_1b", "dataset=tldr", "peft=lora", "quant=4bit"),
        "trainer.args.response_length=8",
    ),
    "sft of pythia": ("trainer=sft", "dataset=tldr", "model=pythia_160m", "dataset.limit.train=64"),
    "sft on chats": (
        "trainer=sft",
        "dataset=firefly",
        "model=pythia_160m",
        "dataset.limit.train=64",
    ),
    "reward of a freeze": (
        "trainer=reward",
        "dataset=ultrafeedback",
        "model=pythia_1b",
        "peft=freeze",
        "peft.layers=1",
    ),
    "kto": ("trainer=kto", "dataset=sentiment", "model=qwen2_5_0_5b", "peft=lora"),
    "grpo on gsm8k": (
        "trainer=grpo",
        "dataset=gsm8k",
        "model=qwen2_5_0_5b",
        "peft=lora",
        *SHORT,
    ),
    "sft_qwen_tldr": ("experiment=sft_qwen_tldr",),
    "dpo_qwen_descriptiveness": ("experiment=dpo_qwen_descriptiveness",),
    "grpo_qwen_tldr": ("experiment=grpo_qwen_tldr", *SHORT),
    "ppo_pythia_tldr": ("experiment=ppo_pythia_tldr", "trainer.args.response_length=8"),
    "ppo from a fine-tuned policy": (
        "experiment=ppo_pythia_tldr_scored",
        "trainer.args.sft_model_path=cleanrl/EleutherAI_pythia-1b-deduped__sft__tldr",
        "trainer.args.response_length=8",
    ),
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_as_typed(name, online_runner):
    runner = online_runner
    done = runner(*COMMANDS[name], *QUICK, "name=run")
    assert "finished  2 steps" in done.stdout
    run = Run(runner.runs("run")[0])
    assert run.status()["state"] == "finished"
    manifest = json.loads((run.folder / "manifest.json").read_text())
    if "experiment" in COMMANDS[name][0]:
        assert manifest["data"]["train"]["rows"] == 500
    assert manifest["model"]["trainable"] > 0
    if (
        any(word.startswith("peft=lora") for word in COMMANDS[name])
        or "experiment" in COMMANDS[name][0]
    ):
        adapter = json.loads((run.model / "adapter_config.json").read_text())
        start = run.cfg["trainer"]["args"].get("sft_model_path")
        assert adapter["base_model_name_or_path"] == (start or run.cfg["model"]["path"])
        has_critic = run.cfg["trainer"]["args"].get("critic") == "model"  # beside the policy
        assert has_critic or manifest["model"]["trainable"] < manifest["model"]["parameters"] / 2


FEW = (
    "batch=2",
    "trainer.args.max_steps=1",
    "dataset.limit.train=8",
    "dataset.limit.eval=2",
    "metric=none",
)
RECIPES = {
    "zephyr_sft": ("dataset.split.train=train_sft", "dataset.split.eval=test_sft"),
    "zephyr_dpo": (),
    "tulu3_dpo": (),
    "smollm3_sft": ("trainer.args.max_length=256",),
    "tldr_ppo": ("trainer.args.total_episodes=null", "trainer.args.response_length=8"),
    "tulu3_rlvr": ("trainer.args.total_episodes=null", "trainer.args.response_length=8"),
    "deepseekmath_grpo": SHORT,
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_of_others_trains_on_rows_of_the_same_form(name, online_runner, hub, tmp_path):
    if "mistralai/Mistral-7B-v0.1" not in {repo_id for _, repo_id in hub.repos}:
        serve_recipes(hub, tmp_path / "models")
    done = online_runner(f"experiment={name}", *FEW, *RECIPES[name])
    assert "finished  1 step" in done.stdout


@pytest.mark.dear("a run of PPO is saved, resumed and exported, and measured twice")
def test_an_experiment_is_rehearsed_without_the_weights_of_the_hub(online_runner, hub):
    hub.forget()
    online_runner.forget_cache()
    words = ("experiment=ppo_pythia_tldr", "model.attention=flash_attention_2")
    words += ("trainer.args.per_device_train_batch_size=4", "dataset.limit.eval=8")
    done = online_runner("rehearse", *words, "memory=24")
    assert ": gpt_neox, 2 layers" in done.stdout
    assert "attention: the version for the CPU instead of flash_attention_2" in done.stdout
    assert "resuming, scoring" in done.stdout
    assert "as transformers loads it" in done.stdout
    assert "forecast  ppo-pythia-tldr" in done.stdout
    assert "peak" in done.stdout
    assert not [
        request
        for request in hub.requests
        if "safetensors" in request.path and request.method == "GET"
    ]


def test_a_second_run_needs_no_network(online_runner, hub):
    online_runner.forget_cache()
    words = (
        "trainer=sft",
        "dataset=tldr",
        "model=pythia_160m",
        *QUICK,
        "dataset.limit.train=64",
        "name=run",
    )
    asked = len(hub.requests)
    online_runner(*words)
    assert (online := len(hub.requests)) > asked
    online_runner(DOOR, *words, "seed=1", door="hub:offline")
    assert len(hub.requests) == online


def test_a_push_is_private_and_holds_no_pickle(online_runner, hub):
    from hub import TOKEN

    hub.uploads.clear()
    words = (
        "trainer=sft",
        *QUICK,
        "trainer.args.push_to_hub=true",
        "trainer.args.hub_model_id=tester/pushed",
    )
    online_runner(*words, "name=run", HF_TOKEN=TOKEN)
    files = set().union(*(upload.files for upload in hub.uploads))
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files
    assert not [name for name in files if name.endswith(".bin")]
    for upload in hub.uploads:
        assert upload.private


def test_a_push_without_a_token_is_refused_before_the_training(online_runner, hub):
    words = (
        "trainer=sft",
        *QUICK,
        "trainer.args.push_to_hub=true",
        "trainer.args.hub_model_id=tester/late",
    )
    done = online_runner(*words, "name=run", code=5)
    assert "401" in done.stderr
    assert "trainer.args.push_to_hub=false" in done.stderr
    assert not (online_runner.runs("run")[0] / "checkpoints").exists()


def test_a_failed_push_costs_no_training_and_the_printed_command_repeats_it(
    online_runner, hub, monkeypatch
):
    from hub import TOKEN, Hub, Refusal

    def refuse(self, request, **where):
        raise Refusal(401, "no room here")

    hub.uploads.clear()
    words = (
        "trainer=sft",
        *QUICK,
        "trainer.args.push_to_hub=true",
        "trainer.args.hub_model_id=tester/late",
    )
    with monkeypatch.context() as patch:
        patch.setattr(Hub, "_answer_commit", refuse)
        done = online_runner(*words, "name=run", HF_TOKEN=TOKEN)
    assert "finished  2 steps" in done.stdout
    assert "401" in done.stderr
    assert "Traceback" not in done.stderr
    run = Run(online_runner.runs("run")[0])
    assert run.status()["state"] == "finished"
    assert "401" in run.manifest()["notes"][0]
    assert "nothing was changed" in online_runner(*words, "name=run").stdout
    assert hub.uploads == []
    [fix] = [line for line in done.stderr.splitlines() if "python -m runner export" in line]
    words = fix.partition("python -m runner ")[2].split()
    assert "pushed" in online_runner(*words, HF_TOKEN=TOKEN).stdout
    assert "model.safetensors" in hub.uploads[-1].files
    assert hub.uploads[-1].private


def test_nothing_is_pushed_unasked(online_runner, hub):
    hub.uploads.clear()
    online_runner("trainer=sft", *QUICK, "name=run")
    assert hub.uploads == []


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("model=hub", "model.path=nobody/nothing"), 2, "nobody/nothing"),
        (("dataset=hub", "dataset.path=nobody/nothing"), 2, "nobody/nothing"),
        (
            ("trainer=gkd", "trainer.teacher_model.path=nobody/nothing"),
            2,
            "type      trainer.teacher_model.path=",
        ),
        (("dataset=tldr", "dataset.split.eval=nosplit"), 2, "validation"),
    ],
)
def test_missing_files_of_the_hub_are_reported_in_four_beats(words, code, message, online_runner):
    done = online_runner(*words, *QUICK, "name=run", code=code)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
