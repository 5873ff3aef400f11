"""What commands print in the terminal, a module for each kind of answer."""
