"""Reports of the results: tables (table.py) and a page with plots (page.py)."""
