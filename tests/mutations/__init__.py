"""Small faults in the product's code, and the tests that must catch each of them."""
