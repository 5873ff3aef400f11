"""The best configuration of a workload on a platform, with reasons; and tables over any field."""
