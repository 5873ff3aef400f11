"""GPUs as data: one TOML file each, with the source next to every figure."""
