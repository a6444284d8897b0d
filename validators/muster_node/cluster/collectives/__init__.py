"""torch.distributed between ranks, collectives whose payload every rank checks, and the NVLink domain."""
