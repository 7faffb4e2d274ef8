"""SQL: engine, tables, filters, reading."""
