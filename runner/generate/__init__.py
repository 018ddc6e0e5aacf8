"""A model at work: completions and likelihoods of rows, and what metrics and rewards say of them.

sampler      prompts -> token ids: the one loop that samples, used by PPO, evaluations, predictions and callbacks
engines      what may stand in for it in PPO: vLLM
batch        rows of unlike length -> batches of so many tokens
completion   rows -> completions as text, with the template and the stop tokens of model and tokenizer
likelihood   rows with known answers -> what a model thinks of them
judge        metrics and rewards on completions and known answers
prediction   completions as a file that an interrupted command continues
rows         dataset -> the held-out rows that are meant
weights      run folder -> the weights that are meant
"""
