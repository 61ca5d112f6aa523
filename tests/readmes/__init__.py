"""What is generated into the documents for readers, and what is checked about them."""
