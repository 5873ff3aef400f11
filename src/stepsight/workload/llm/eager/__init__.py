"""The transformer families, each written once over symbolic tensors."""
