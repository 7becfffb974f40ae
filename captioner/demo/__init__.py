"""The page where pictures are captioned; the only part that knows Gradio (``captioner[demo]``)."""
