"""`arc top`, the console. What is shown is worked out free of Textual (store, scene, views); app.py draws it."""
