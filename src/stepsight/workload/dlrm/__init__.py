"""DLRM training steps."""
