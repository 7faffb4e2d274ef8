"""What went wrong or left its healthy range, as data."""
