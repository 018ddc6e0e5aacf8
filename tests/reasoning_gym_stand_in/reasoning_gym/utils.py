"""Prompts by their names."""

SYSTEM_PROMPTS = {"default": "Write <answer>answer here</answer>."}
