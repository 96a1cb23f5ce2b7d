"""The real game: random worlds, the engine behind them, players that press keys, captions.

Only this package knows ViZDoom, and only when a game starts; everything else reads episodes.
"""
