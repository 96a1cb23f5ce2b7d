"""Video transformers as they were published, on FAST-AR's memories."""
