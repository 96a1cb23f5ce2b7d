"""Whose work this rests on, and on what terms: a page of the menu. CITATION.cff cites the same papers."""

PAPERS = {  # by their number on arXiv
    "2602.01801": (
        "FAST-AR: Samuel, Tzachor, Levy, Green, Chechik, Ben-Ari, Fast Autoregressive Video Diffusion and "
        "World Models with Temporal Cache Compression and Sparse Attention"
    ),
    "2512.13604": "LongVie 2: Gao et al., Multimodal Controllable Ultra-Long Video World Model",
}
PACKAGES = {  # by their licence
    "BSD": "torch, numpy, omegaconf, imageio, av (with FFmpeg), psutil, nvidia-ml-py",
    "Apache-2.0": "safetensors, aiohttp, flashinfer-python, diffusers, transformers, sentencepiece",
    "PSF": "matplotlib",
    "MIT": "pillow (MIT-CMU), vizdoom, faiss-cpu, faiss-gpu",
    "LGPL-2.1": "pygame-ce",
}
CREDITS = {
    "This game": "FAST-AR Play, by its contributors. Apache-2.0",
    "Papers": [f"{about}, arXiv {number}" for number, about in PAPERS.items()],
    "Pictures": (
        "Learnt from ViZDoom (MIT) with art of the Freedoom project (BSD), "
        "Copyright 2001-2024 Contributors to the Freedoom project"
    ),
    "Letters": "DejaVu Sans Condensed, Copyright 2003 Bitstream; DejaVu changes are in the public domain",
    "Packages": [f"{licence}: {names}" for licence, names in PACKAGES.items()],
    "In full": "assets/README.md, assets/font.LICENSE.txt, LICENSE",
}
