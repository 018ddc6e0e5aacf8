"""A trained model at work: which words ask for it, which weights it has, which rows it is given, what it writes.

words     command line -> what is asked, checked; nothing heavy is imported
weights   run folder -> the weights that are meant, and the model with them
rows      dataset -> the rows that are meant, by held-out set
answer    rows -> completions, scores and figures of known answers
paper     predictions as a file that an interrupted command continues
harness   the tasks of lm-evaluation-harness
"""
