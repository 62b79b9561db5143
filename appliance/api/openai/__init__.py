"""OpenAI's API for language models. Each field of a request is honoured, or refused by its name."""
