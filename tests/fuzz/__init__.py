"""Whatever upstreams and clients send: generated streams against decoders, fold and encoders."""
