"""What the parts that were found mean for the members of a block, and for records and reports."""
