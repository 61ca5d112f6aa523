"""Takes an approval from its request to its end: records, decides, sends, expires, restores."""
