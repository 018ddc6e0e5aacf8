"""What a completion is worth: a rule in code, or the score of a model. A reward knows no trainer and no dataset.

Every function here takes what TRL's online trainers give, ``(prompts, completions, **columns)``, and returns one number
per completion, or None where it does not apply. Completions are texts, or conversations that end with the answer.
"""
