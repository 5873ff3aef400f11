"""From a recorded step to a Job, and the file it is saved in. Only `memory` needs torch."""
