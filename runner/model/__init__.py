"""Models and tokenizers: loaded, made, frozen in part, and copied as references.

What trains them is not here.
"""
