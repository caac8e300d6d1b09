"""Programs in the frameworks of others, one small module each."""
