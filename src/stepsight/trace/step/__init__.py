"""One step of a run as a `Job`, with its waits and host times."""
