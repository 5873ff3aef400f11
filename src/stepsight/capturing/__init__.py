"""A training script, run on this machine without a GPU, becomes a Job. Needs torch 2.9 or newer.

`worker` runs a script as one rank in a process of its own; `ranks` finds which ranks differ and puts the job
together; `session` is the fake GPU with its recorder. `step` is what is left of it: plain data, no torch.
"""
