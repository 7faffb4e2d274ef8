"""One module a page: `render(run)` draws it; the rest of the dashboard is pure."""
