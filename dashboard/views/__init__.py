"""One module a page: `render(run, root)` draws it; the rest of the dashboard is pure."""
