"""The names of TRL and transformers that we rely on are still those of the installed ones."""

import pytest

from runner.schema import read_signature
from runner.schema.upstream import COMPLETION_LENGTHS

CONFIGS = {
    "max_completion_length": ("trl.GRPOConfig", "trl.RLOOConfig"),
    "response_length": ("runner.ppo.PPOConfig",),  # as in TRL 1.12, whose PPO this one replaces
    "max_new_tokens": ("trl.experimental.online_dpo.OnlineDPOConfig", "trl.experimental.gkd.GKDConfig"),
}


@pytest.mark.parametrize("name", COMPLETION_LENGTHS)
def test_a_trainer_still_calls_the_length_of_completions_so(name):
    for config in CONFIGS[name]:
        assert name in read_signature(config).parameters, f"{config} has renamed {name}: see signature.upstream"


def test_no_trainer_of_the_menu_that_samples_has_another_name_for_it():
    """A new name would leave the length unknown, and an alarm and a table without a word of it."""
    import yaml

    from runner.io.files import MENU

    for path in sorted((MENU / "trainer").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"]
        trainer, config = (read_signature(one["_target_"]).parameters for one in (node, node["args"]))
        if "reward_funcs" in trainer:
            assert set(COMPLETION_LENGTHS) & set(config), path.name
