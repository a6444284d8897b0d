"""NVIDIA GPUs of a real machine: NVML for facts, counters and sensors, torch.cuda for compute."""
