"""What a run will need of memory, time and disk, worked out from its configuration before anything is loaded.

Nothing is guessed that can be counted: the model is made without data (``structure``), one batch goes through it with
every tensor's bytes and every product's operations counted (``simulation``), and what a trainer holds besides is added
up (``memory``). How long its rows are must be given.
"""
