"""The pictures of the page, one module each: a function that returns a section, or None if there is nothing to show."""
