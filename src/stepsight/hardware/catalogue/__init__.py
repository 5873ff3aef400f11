"""GPUs as data: one TOML file each, with the source beside every figure."""
