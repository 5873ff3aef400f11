"""What a script does on the fake GPU, written down: calls, host operators, memory, where steps begin."""
