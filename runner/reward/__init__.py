"""Rewards of completions: a rule in code, or the score of a model.

A reward knows no trainer and no dataset.

A rule is a function of ``completions``, and of ``prompts`` or columns of the rows where it names
them; ``**columns`` takes every column, as TRL passes them. It returns one number per completion, or
None where it does not apply. Completions are texts, or conversations that end with the answer.
"""
