"""What one asks of a traced step: its prediction, what-ifs, an inspection."""
