"""One module a view: what it shows and how it answers keys, free of Textual."""
