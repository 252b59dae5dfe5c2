"""The search page: FastAPI, plain HTML, CSS and a little JavaScript; nothing from outside."""
