"""Work that several nodes do together: who is there, who was lost and why, and torch.distributed between them."""
