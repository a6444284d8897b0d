"""What is mailed and noted: reports, digests, notices, who gets which, and their delivery."""
