"""Ways of remembering beside each other: what they cost, what they read, what comes of it."""
