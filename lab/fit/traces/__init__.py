"""Constants that traces show, with what each run contributes."""
