"""What tests share: real servers, and readers of recordings."""
