"""A small language model to search over."""

MODEL = {
    "kind": "transformer", "family": "llama", "name": "small", "layers": 8, "hidden": 1024, "heads": 16,
    "kv_heads": 8, "ffn": 2816, "vocab": 32000, "sequence": 2048, "global_batch": 32,
    "training": {"precision": "bf16", "framework": "megatron"}, "parallel": {"data": 8},
}  # fmt: skip
PLATFORM = "8xH100-SXM"
DLRM = {
    "kind": "dlrm", "batch": 4096,
    "dense": {"features": 64, "bottom": [64, 32], "top": [64, 1], "interaction": "dot"},
    "tables": [{"count": 8, "rows": 100_000, "dim": 32, "pooling": 4.0, "indices": {"zipf": 1.05}}],
    "parallel": {"ranks": 4, "sharding": "size_lookup_greedy"},
}  # fmt: skip
