"""Random models, predicted and then trained here."""
