"""From the cells of all rounds to the parts that explain them."""
