"""Environments by name: sources of episodes, which bring their own rows, tools and rewards.

``contract`` says what a source is and opens it; the other modules are sources, one for each
library.
"""
