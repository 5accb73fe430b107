"""Text for the language recipes: corpora, vocabularies, tokens, and what is made of them."""
