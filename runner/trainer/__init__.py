"""Trainers that are ours; every other one is TRL's, named by ``_target_`` in ``conf/trainer/``."""
