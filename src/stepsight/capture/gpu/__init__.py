"""A GPU that is not there: torch.cuda answers, tensors have sizes and no data."""
