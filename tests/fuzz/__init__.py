"""Generated hostile streams against the decoders, the fold and the encoders."""
