"""Who uses a node: the schedulers that hand nodes to users, behind one small interface."""
