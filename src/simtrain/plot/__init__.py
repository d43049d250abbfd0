"""All pictures that are drawn with Matplotlib."""
