"""The spectrum of a tensor, what it predicts, and the spectra of a model at work.

Names that need Torch are imported when first used.
"""
