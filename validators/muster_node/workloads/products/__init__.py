"""Integer products with an exact answer, timed products, and pulses of them."""
