"""``report.html``: a study in pictures, one file that needs no network and can be read without scripts."""
