"""What the commands of `kvfuzz` do; `kvfuzz.cli` holds their words and options."""
