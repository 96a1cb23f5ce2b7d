"""How good a world is: measured on worlds that were never trained on, beside the real engine."""
