"""Operators over symbolic tensors, as eager PyTorch runs them."""
