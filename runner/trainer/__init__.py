"""Extensions of TRL's trainers, which ``_target_`` in ``conf/trainer/`` names; PPO is in ``runner.ppo``."""
