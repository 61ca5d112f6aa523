"""What services with HTTP share."""
