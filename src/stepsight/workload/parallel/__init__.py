"""How a step is spread over ranks: buckets, stages, tensor groups."""
