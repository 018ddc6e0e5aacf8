"""``model.generate`` by the runner's sampler: the distribution and the form of transformers'."""

import ast
import copy
import inspect
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from going_on import check_going_on
from needs import ON_CPU, TRAINERS, needed
from tiny_ppo import END, PAD, WORDS, letter_model, lora
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runner.config.composition import compose
from runner.generate import generate_call
from runner.generate.generate_call import find_lack, generating
from runner.generate.padding import pad
from runner.generate.sampler import Sampling, sample, seeded_generator, uniform
from runner.launch.compose.stages import compose_runs, faults_of
from runner.run import Run, open_run
from runner.run.key import key_of
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.training.trainer_sampler import TrainerSampler

PROMPTS = [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9], [0, 1, 2], [3]]
SAMPLING = sorted(
    name for name, node in TRAINERS.items() if node.get("sampler") == "auto" and name in ON_CPU
)


def draw(rows, length):
    noises = [uniform(length, generator=seeded_generator("noise", row)) for row in range(rows)]
    return torch.stack(noises)


def config_with(**settings):
    plain = {"max_new_tokens": 12, "do_sample": True, "top_k": 0, "pad_token_id": PAD}
    return GenerationConfig(**(plain | {"eos_token_id": [END, 7]} | settings))


def asked(prompts=PROMPTS, **settings):
    """What a trainer of TRL calls ``generate`` with."""
    ids, mask = pad(prompts, torch.device("cpu"), side="left", value=PAD)
    return {"input_ids": ids, "attention_mask": mask, "generation_config": config_with(**settings)}


def by_runner(model, **kwargs):
    with generating(model, draw, torch.no_grad):
        return model.generate(**kwargs)


# --- Tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
def test_greedy_tokens_are_those_of_transformers(kind):
    model = letter_model(kind, spread=0.8)
    width = asked()["input_ids"].shape[1]
    free = by_runner(model, **asked(do_sample=False, eos_token_id=WORDS))
    call = asked(do_sample=False, eos_token_id=[END, int(free[1, width + 2])])
    ours = by_runner(model, **call)
    assert torch.equal(ours, model.generate(**call))
    lengths = (ours[:, width:] != PAD).sum(1).tolist()
    assert len(set(lengths)) > 1, "some end before others, and are padded"
    assert "generate" not in vars(model)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("settings", "chain"),
    [
        ({"temperature": 0.7}, []),
        (
            {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
            [TopKLogitsWarper(12), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)],
        ),
        ({"temperature": 1.3, "top_k": 5}, [TopKLogitsWarper(5)]),
        ({"temperature": 1.3, "top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"temperature": 1.3, "min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    ],
    ids=["temperature", "all", "top_k", "top_p", "min_p"],
)
def test_pairs_of_tokens_pass_a_chi_square_test(settings, chain):
    """Each pair is drawn as often as the warpers of transformers say."""
    model = letter_model()
    model.generation_config.eos_token_id = None
    count = 8_000
    prompt = [4, 5, 6]
    warp = LogitsProcessorList([TemperatureLogitsWarper(settings["temperature"]), *chain])
    words = torch.arange(WORDS)
    prefixes = torch.cat([torch.tensor([prompt] * WORDS), words[:, None]], 1)
    with torch.no_grad():
        logits = model(prefixes).logits
    first = warp(None, logits[:1, -2])[0].softmax(-1)
    second = warp(None, logits[:, -1]).softmax(-1)
    expected = (first[:, None] * second).flatten() * count
    call = asked([prompt] * count, max_new_tokens=2, eos_token_id=None, **settings)
    pairs = by_runner(model, **call)[:, -2:]
    drawn = (pairs[:, 0] * WORDS + pairs[:, 1]).bincount(minlength=WORDS**2)
    assert drawn[expected == 0].sum() == 0
    # Rare pairs count as one cell.
    often = expected >= 5
    cells = torch.cat([expected[often], expected[~often].sum()[None]]).double()
    counts = torch.cat([drawn[often], drawn[~often].sum()[None]])
    cells = cells.clamp(min=1e-9)
    distance = ((counts - cells).square() / cells)[cells > 1].sum()
    freedom = int((cells > 1).sum()) - 1
    # A chi-square of so many degrees is further than this once in ten thousand times.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert freedom > 10
    assert distance < bound


def test_a_prompt_that_is_read_once_gives_the_tokens_of_one_that_is_not():
    model = letter_model()
    noise = draw(len(PROMPTS), 10)
    tokens = []
    read = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    for shares in (True, False):
        how = Sampling(10, (END,), shares_prefill=shares)
        tokens.append([row.tolist() for row in sample(model, PROMPTS, how, noise).tokens])
    handle.remove()
    assert tokens[0] == tokens[1]
    assert [tuple(shape) for shape in read if shape[1] > 1] == [(3, 6), (5, 6)]


def test_settings_that_a_call_leaves_open_are_those_of_the_model_and_of_transformers():
    model = letter_model()
    model.generation_config = GenerationConfig(eos_token_id=END, top_k=1)
    plain = GenerationConfig(max_new_tokens=6, do_sample=True, pad_token_id=PAD)
    greedy = asked(do_sample=False, max_new_tokens=6, eos_token_id=END)
    assert torch.equal(
        by_runner(model, **asked() | {"generation_config": plain}), model.generate(**greedy)
    )
    model.generation_config = GenerationConfig(repetition_penalty=1.5)
    assert "repetition_penalty" in find_lack(model, (), asked())
    model.generation_config = GenerationConfig()
    settings = generate_call.generation_settings(model, GenerationConfig(max_new_tokens=3))
    assert generate_call.to_sampling(settings, 1).top_k == upstream.DEFAULT_TOP_K
    with_defaults = copy.deepcopy(plain)
    with_defaults.top_k = upstream.DEFAULT_TOP_K
    kept = []
    for config in (plain, with_defaults):
        torch.manual_seed(0)
        kept.append(model.generate(**asked() | {"generation_config": config}))
    assert torch.equal(*kept)


def test_an_output_of_transformers_is_given_where_it_is_asked_for():
    model = letter_model()
    call = asked()
    output = by_runner(model, **call, return_dict_in_generate=True)
    assert torch.equal(output.sequences, by_runner(model, **call))


@pytest.mark.parametrize(
    ("change", "lack"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty is 1.2"),
        ({"num_beams": 2}, "num_beams is 2"),
        ({"num_return_sequences": 3}, "num_return_sequences is 3"),
        ({"suppress_tokens": [3]}, "suppress_tokens"),
        ({"stop_strings": ["a"]}, "stop_strings"),
        ({"min_new_tokens": 3}, "min_new_tokens"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
        ({"max_new_tokens": None}, "max_new_tokens is not set"),
        ({"pixel_values": torch.zeros(1)}, "called with pixel_values"),
        ({"attention_mask": None}, "without prompts, their mask"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_what_the_sampler_cannot_do_transformers_does(change, lack, monkeypatch, caplog):
    calls = []

    def generate(self, *args, **kwargs):
        calls.append(kwargs)
        return "by transformers"

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    monkeypatch.setattr(generate_call, "_noted", set())
    model = letter_model()
    call = asked()
    for name, value in change.items():
        if hasattr(call["generation_config"], name):
            setattr(call["generation_config"], name, value)
        else:
            call[name] = value
    assert lack in find_lack(model, (), call)
    for _ in range(2):
        assert by_runner(model, **call) == "by transformers"
    assert calls == [call, call]
    assert len(caplog.messages) == 1
    assert lack in caplog.messages[0]


def test_every_setting_of_a_generation_config_is_judged():
    """A new one of transformers is left to it, unless it is at the value that changes nothing."""
    for name, value in GenerationConfig().to_dict().items():
        assert upstream.is_sampled_by_runner(name, value), name
        if name not in (*upstream.sampling.SAMPLED_BY_RUNNER, "transformers_version"):
            is_read = not upstream.is_sampled_by_runner(name, 7)
            is_harmless = name in upstream.sampling.HARMLESS_TO_RUNNER or name.startswith("_")
            assert is_read != is_harmless, name
    assert not upstream.is_sampled_by_runner("a_setting_of_tomorrow", True)


def test_adapters_inside_the_layers_are_sampled_with_and_learnt_prompts_are_not():
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(letter_model(), lora())
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    call = asked(do_sample=False)
    assert find_lack(model, (), call) == ""
    ours = by_runner(model, **call)
    assert torch.equal(ours, model.generate(**call))
    with model.disable_adapter():
        assert not torch.equal(ours, model.generate(**call)), "the adapter changes what is sampled"
    learnt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    assert "a matter of its own" in find_lack(get_peft_model(letter_model(), learnt), (), asked())


# --- Noise ----------------------------------------------------------------------------------------


def trainer_of(model, step, process=0):
    """What the sampler reads of a trainer."""
    accelerator = SimpleNamespace(unwrap_model=lambda model: model, autocast=torch.no_grad)
    return SimpleNamespace(
        accelerator=accelerator,
        model_wrapped=model,
        state=SimpleNamespace(global_step=step),
        args=SimpleNamespace(process_index=process),
    )


def test_noise_follows_from_the_seed_the_step_the_process_and_the_row():
    model = letter_model()
    call = asked()

    def sampled(sampler, step, *, process=0, is_evaluation=False):
        with sampler.sampling(trainer_of(model, step, process), is_evaluation):
            return model.generate(**call).tolist()

    sampler = TrainerSampler(seed=3)
    of_steps = [[sampled(sampler, step) for _ in range(2)] for step in (0, 1)]
    evaluated = sampled(sampler, 2, is_evaluation=True)
    third = sampled(sampler, 2)
    assert evaluated == sampled(sampler, 9, is_evaluation=True), "each evaluation has the same"
    # A resume begins at any step, and finds the same noise.
    resumed = TrainerSampler(seed=3)
    assert sampled(resumed, 1) == of_steps[1][0]
    assert sampled(resumed, 1) == of_steps[1][1]
    assert sampled(resumed, 2) == third
    samples = [*of_steps[0], *of_steps[1], third, evaluated]
    samples.append(sampled(TrainerSampler(seed=4), 0))
    samples.append(sampled(TrainerSampler(seed=3), 0, process=1))
    assert len({str(rows) for rows in samples}) == len(samples)
    assert of_steps[0][0][0] != of_steps[0][0][3], "rows with one prompt have their own noise"


# --- Upstream -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", SAMPLING)
def test_trainers_of_trl_call_generate_as_the_sampler_answers_it(trainer):
    """Fails where TRL samples by another method, or with other arguments."""
    kind = import_module(TRAINERS[trainer]["_target_"].rpartition(".")[0])
    kind = getattr(kind, TRAINERS[trainer]["_target_"].rpartition(".")[2])
    calls = []
    for cls in kind.__mro__:
        if not cls.__module__.startswith("trl."):
            continue
        for node in ast.walk(ast.parse(inspect.getsource(import_module(cls.__module__)))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "generate" and "llm" not in ast.unparse(node.func):
                    calls.append(node)
    assert calls
    for call in calls:
        names = {keyword.arg for keyword in call.keywords} - {None}
        assert not call.args, ast.unparse(call)
        assert names <= generate_call.ARGUMENTS, ast.unparse(call)
        assert "generation_config" in names, ast.unparse(call)


def test_the_menu_says_which_trainers_sample():
    for name, node in TRAINERS.items():
        fields = upstream.config_fields(node["args"])
        assert upstream.calls_generate(fields) == ("sampler" in node), name
        assert node.get("sampler", "auto") == "auto"
    assert {"grpo", "rloo", "online_dpo", "gkd", "distillation", "sdft"} <= set(SAMPLING)
    assert read_signature("runner.config.experiment.TrainerPart").parameters["sampler"]


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", sorted(SAMPLING, key=lambda name: name not in ("gkd", "grpo")))
def test_every_online_trainer_samples_by_the_runner(train, trainer, monkeypatch, caplog):
    """Transformers samples nothing, and the same command gives the same bits."""

    def generate(self, *args, **kwargs):
        raise AssertionError("transformers is asked to sample")

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    monkeypatch.setattr(generate_call, "_noted", set())
    sampled = []
    answer = generate_call.sample

    def counted(*args, **kwargs):
        responses = answer(*args, **kwargs)
        sampled.append(len(responses.tokens))
        return responses

    monkeypatch.setattr(generate_call, "sample", counted)
    words = [f"trainer={trainer}", "learning_rate=1e-3", "metric=none", "dataset.limit.train=200"]
    words += ["dataset.limit.eval=16", "trainer.args.max_steps=2", *needed(trainer)]
    words += ["trainer.args.per_device_train_batch_size=8", "trainer.args.logging_steps=1"]
    if trainer == "a2po":
        # Its reference, which is another model, samples the values of the prompts.
        monkeypatch.undo()
        monkeypatch.setattr(generate_call, "sample", counted)
    if "lmbda" in upstream.config_fields(TRAINERS[trainer]["args"]):
        words.append("trainer.args.lmbda=1.0")
    done = train(*words)
    assert (done.code, done.state()) == (0, "finished")
    assert sum(sampled) >= 2 * 8
    assert not [text for text in caplog.messages if "transformers samples" in text]
    assert done.run.cfg["trainer"]["sampler"] == "runner"


# --- The key --------------------------------------------------------------------------------------


def cfg_of(*words):
    return compose(["trainer=grpo", *words]).cfg


def former(cfg):
    """The configuration as an earlier version froze it."""
    trainer = {name: value for name, value in cfg["trainer"].items() if name != "sampler"}
    return {**cfg, "trainer": trainer}


@pytest.mark.slow
def test_only_runs_that_the_runner_samples_for_have_another_key_than_before():
    plain = cfg_of()
    assert plain["trainer"]["sampler"] == "runner"
    assert key_of(plain) != key_of(former(plain))
    library = cfg_of("trainer.sampler=transformers")
    assert key_of(library) == key_of(former(plain))
    by_word, by_field = cfg_of("trainer.sampler=vllm"), cfg_of("trainer.args.use_vllm=true")
    assert by_word["trainer"]["args"]["use_vllm"] is True
    assert key_of(by_word) == key_of(by_field) == key_of(former(by_field))
    penalised = cfg_of("trainer.args.repetition_penalty=1.1")
    assert penalised["trainer"]["sampler"] == "transformers"
    assert key_of(penalised) == key_of(former(penalised))
    seeing = cfg_of("model=new_vision", "dataset=toy_picture", "reward=length")
    assert seeing["trainer"]["sampler"] == "transformers"
    for words in (["trainer=sft"], ["trainer=ppo", "reward=length"]):
        assert "sampler" not in compose(words).cfg["trainer"]


@pytest.mark.parametrize(
    ("words", "found", "fix"),
    [
        (["trainer=sft", "trainer.sampler=runner"], "does not train on", "leave trainer.sampler"),
        (["trainer=orpo", "trainer.sampler=runner"], "does not train on", "leave trainer.sampler"),
        (
            ["trainer=ppo", "reward=length", "trainer.sampler=transformers"],
            "rollout_engine",
            "trainer.args.rollout_engine=generate",
        ),
        (["trainer=grpo", "trainer.sampler=ours"], "the text ours", "trainer.sampler="),
        (
            ["trainer=gkd", *needed("gkd"), "trainer.sampler=vllm"],
            "GKDTrainer cannot use",
            "trainer.sampler=runner",
        ),
        (
            ["trainer=grpo", "trainer.sampler=runner", "trainer.args.use_vllm=true"],
            "use_vllm is true",
            "leave trainer.args.use_vllm out",
        ),
        (
            ["trainer=grpo", "trainer.sampler=vllm", "trainer.args.use_vllm=false"],
            "use_vllm is false",
            "leave trainer.args.use_vllm out",
        ),
        (
            ["trainer=rloo", "trainer.sampler=runner", "trainer.args.repetition_penalty=1.2"],
            "repetition_penalty is 1.2",
            "trainer.sampler=transformers",
        ),
        (
            ["trainer=rloo", "trainer.sampler=runner", "trainer.args.cache_implementation=static"],
            "cache_implementation is static",
            "trainer.sampler=transformers",
        ),
        (
            [
                *["trainer=grpo", "trainer.sampler=runner", "model=new_vision"],
                *["dataset=toy_picture", "reward=length", "metric=none"],
            ],
            "model.vision_config is",
            "trainer.sampler=transformers",
        ),
        (
            [
                "trainer=grpo",
                "trainer.sampler=runner",
                "trainer.args.generation_kwargs={no_repeat_ngram_size: 2}",
            ],
            "generation_kwargs.no_repeat_ngram_size is 2",
            "trainer.sampler=transformers",
        ),
    ],
)
@pytest.mark.quick(4)
def test_a_sampler_that_cannot_be_is_refused_before_the_start(words, found, fix):
    (fault,) = faults_of(compose(words))
    assert fault.where == "trainer.sampler"
    assert found in fault.found
    word = str(fault).rpartition("type")[2].strip()
    assert word.startswith(fix)
    if word.startswith("trainer.sampler="):
        kept = [old for old in words if not old.startswith("trainer.sampler=")]
        assert faults_of(compose([*kept, word.split()[0]])) == []


@pytest.mark.slow
def test_the_fastest_settings_say_why_the_runner_samples_or_not():
    cases = {
        "trainer=grpo": "sampler=runner: the same distribution",
        "trainer.args.repetition_penalty=1.2": "without sampler=runner: trainer.args.repetition_p",
        "trainer.args.generation_kwargs={bad_words_ids: [[1]]}": "without sampler=runner: trainer",
        "trainer.args.use_vllm=true": "sampler=vllm: as use_vllm was set",
        "trainer.sampler=transformers": "sampler=transformers: as it was set",
    }
    for word, line in cases.items():
        *_, last = compose(["trainer=grpo", "speed=max", word]).speed
        assert last.startswith(line)
    assert not any("sampler" in line for line in compose(["trainer=sft", "speed=max"]).speed)


# --- Runs of earlier versions ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_of_an_earlier_version_goes_on_with_transformers(tmp_path):
    words = ["trainer=grpo", "name=old", f"output_root={tmp_path}"]
    (fresh,) = compose_runs(words)
    old = open_run(former(fresh.cfg), words, words, {})
    (again,) = compose_runs(words)
    assert again.sampler.begun == str(old.folder)
    text = f"transformers, with which {old.folder} began; trainer.sampler=runner is another run"
    assert str(again.sampler) == text
    assert "sampler" not in again.cfg["trainer"]
    assert open_run(again.cfg, words, words, {}).folder == old.folder
    assert "sampler" not in Run(old.folder).cfg["trainer"]
    (typed,) = compose_runs([*words, "trainer.sampler=runner"])
    assert key_of(typed.cfg) == key_of(fresh.cfg) != key_of(old.cfg)
    # Once that run is there, the command without the word is that run.
    open_run(typed.cfg, words, words, {})
    (now,) = compose_runs(words)
    assert now.cfg["trainer"]["sampler"] == "runner"
    # With an adapter it may have begun without the multiple of the rate as well.
    lora_words = [*words, "model=hub", "model.path=runner://model/tiny", "peft=lora"]
    (composed,) = compose_runs([*lora_words, "learning_rate=1e-6"])
    oldest = former(composed.cfg)
    del oldest["peft"]["learning_rate_factor"]
    began = open_run(oldest, lora_words, lora_words, {})
    (begun,) = compose_runs(lora_words)
    assert (begun.sampler.begun, begun.rate.begun) == (str(began.folder), str(began.folder))
    assert key_of(begun.cfg) == key_of(began.cfg)


def test_a_run_whose_sampler_was_chosen_is_not_an_old_one(tmp_path):
    words = ["trainer=grpo", "name=chosen", f"output_root={tmp_path}"]
    (library,) = compose_runs([*words, "trainer.sampler=transformers"])
    open_run(library.cfg, words, words, {})
    (plain,) = compose_runs(words)
    assert plain.cfg["trainer"]["sampler"] == "runner"
    assert not plain.sampler.begun


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "gkd"])
def test_a_run_that_resumes_ends_with_the_same_bits(train, trainer):
    """GRPO samples for two steps at once, GKD for each micro-batch of a step."""
    words = [f"trainer={trainer}", "trainer.args.max_steps=6", "trainer.args.save_steps=2"]
    words += ["trainer.args.per_device_train_batch_size=8", "trainer.args.logging_steps=1"]
    words += ["dataset.limit.train=40", "dataset.limit.eval=8", "metric=none", "learning_rate=1e-3"]
    words += {
        "grpo": ["trainer.args.num_generations=4", "trainer.args.num_iterations=2", "peft=lora"],
        "gkd": [*needed("gkd"), "trainer.args.gradient_accumulation_steps=2"],
    }[trainer]
    run = train(*words).run
    assert run.cfg["trainer"]["sampler"] == "runner"
    check_going_on(train, words, run)
