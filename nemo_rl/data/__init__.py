"""Datasets, chat templating and tokenisation, the resumable prompt loader."""
