"""Published training steps of language models: one reader per file, every row a `Case`."""
