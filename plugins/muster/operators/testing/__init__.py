"""What tests a node: claims, stages, the members of a block, and the remote job under each."""
