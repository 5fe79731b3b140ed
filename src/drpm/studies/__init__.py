"""Small studies of the laws themselves, each runnable from the command line."""
