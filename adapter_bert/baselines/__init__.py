"""The baseline without BERT: networks on text embeddings, found by a search."""
