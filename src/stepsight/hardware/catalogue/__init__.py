"""GPUs as data: one TOML file each, with the source of every figure."""
