"""One module for each family of operators. An operator is a frozen dataclass with its ``stores``;
``start()`` returns the function that takes the records of each input, and returns others."""
