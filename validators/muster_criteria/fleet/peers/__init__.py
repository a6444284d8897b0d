"""What is usual: among peers, in a device's past, and how rare a distance from it is among healthy parts."""
