"""Generate parts of the documents for readers, and check these documents."""
