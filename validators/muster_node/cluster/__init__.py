"""Work that several nodes do together: rendezvous, detection of lost members, and torch.distributed."""
