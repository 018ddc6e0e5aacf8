"""A training, from the folder of its run to a trained model.

components      every component that the configuration names, in the order in which they need each other
extension       the one subclass of the trainer; precompute and objective say what it adds
callback        small callbacks; checkpoint seals what is saved
health          a training that cannot learn anything is found at once, and recovery goes on from before it
evaluation      scores on held-out rows before, during and after
inspection      the tokens that are really trained
trained         the finished model
"""
