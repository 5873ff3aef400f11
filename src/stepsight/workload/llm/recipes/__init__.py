"""What training stacks do unless their user asks for something else: one TOML file each."""
